package policies

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/policy"
)

// SetHostRules says what counts for host endpoints whatever their policies say, and whether pods reach their node.
// Until it is called no policies are programmed, for a while: what an earlier agent left may allow other ports, and
// deny what the defaults allow. Nothing comes of a nil Worker.
func (w *Worker) SetHostRules(r policy.HostRules) {
	if w == nil {
		return
	}
	w.mu.Lock()
	changed := w.host == nil || !reflect.DeepEqual(*w.host, r)
	w.host = &r
	w.mu.Unlock()
	if changed {
		wait.Signal(w.hostChanged)
	}
}

// SetGround says whose the addresses of pools are; see cluster.PolicyFeed. It is to be called before SetHostRules.
// Nothing comes of a nil Worker.
func (w *Worker) SetGround(g cluster.Ground) {
	if w != nil {
		w.Feed.SetGround(g)
	}
}

// SetHandling says how packets are treated whatever policies say, and what the log of what Log rules match is told by.
// Until it is called packets are treated as an earlier agent did. Nothing comes of a nil Worker.
func (w *Worker) SetHandling(m policy.Handling, logPrefix string) {
	if w == nil {
		return
	}
	w.mu.Lock()
	changed := w.handling == nil || *w.handling != m
	w.handling, w.prefix = &m, logPrefix
	w.mu.Unlock()
	if changed {
		wait.Signal(w.hostChanged)
	}
}

func (w *Worker) handlingKnown() *policy.Handling {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.handling
}

// hostKnown reports whether SetHostRules was called.
func (w *Worker) hostKnown() bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.host != nil
}

// hostRules are Calico's until others are known.
func (w *Worker) hostRules() policy.HostRules {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.host != nil {
		return *w.host
	}
	return policy.HostRules{Inbound: policy.DefaultInbound(), Outbound: policy.DefaultOutbound()}
}

// hostsMoved reports that host endpoints have other links, or other rules before their policies: without host endpoints
// only what becomes of packets from pods matters.
func (w *Worker) hostsMoved() (bool, error) {
	if !w.todo.host && !w.todo.routes || w.compiled.rules == nil {
		return false, nil
	}
	if w.closesWay() || w.failed() && !w.compiled.back {
		return true, nil
	}
	now, before := w.hostRules(), w.model.Host
	if !reflect.DeepEqual(w.handlingKnown(), w.model.Handling) || now.DropFromPods != before.DropFromPods ||
		w.model.HasHosts() && !reflect.DeepEqual(now, before) {
		return true, nil
	}
	links, err := w.interfaces()
	return err == nil && !reflect.DeepEqual(links, w.model.Interfaces), err
}

// addHost completes the model with what the node itself says.
func (w *Worker) addHost() (err error) {
	w.model.Host, w.model.Handling = w.hostRules(), w.handlingKnown()
	w.model.Interfaces, err = w.interfaces()
	return err
}

// placesHosts reports that a host endpoint of this node is found by its addresses.
func (m *model) placesHosts() bool {
	return slices.ContainsFunc(m.HostEndpoints, func(h policy.HostEndpoint) bool { return h.Node == m.Node && h.Interface == "" })
}

// interfaces are the node's; nil if no host endpoint is found by them.
func (w *Worker) interfaces() (map[string][]netip.Addr, error) {
	if !w.model.placesHosts() {
		return nil, nil
	}
	return Interfaces(w.Kernel)
}

// Interfaces are the node's own links, but for loopback, with their addresses.
func Interfaces(kernel *netlinkx.Conn) (map[string][]netip.Addr, error) {
	links, err := kernel.Links()
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		if l.Name != "lo" && !strings.HasPrefix(l.Name, podnet.DefaultVethPrefix) {
			names[l.Index] = l.Name
		}
	}
	addrs, err := kernel.Addrs(0, netlinkx.FamilyAll)
	if err != nil {
		return nil, err
	}
	found := map[string][]netip.Addr{}
	for _, a := range addrs {
		if name, ok := names[a.Link]; ok {
			found[name] = append(found[name], a.Prefix.Addr())
		}
	}
	for _, all := range found {
		slices.SortFunc(all, netip.Addr.Compare)
	}
	return found, nil
}

func (w *Worker) heardAddresses(ok bool) {
	if w.todo.host = true; !ok {
		w.addressEvents = nil
	}
}
