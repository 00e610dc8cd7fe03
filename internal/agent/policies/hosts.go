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

// SetHostRules sets what precedes the policies of host endpoints, and whether pods reach their node. Until the first
// call no policies are programmed, for a while: the rules of an earlier agent may allow other ports, and deny what the
// defaults allow. A nil Worker ignores it.
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

// SetGround sets the owners of the pools' addresses; see cluster.PolicyFeed. Call it before SetHostRules. A nil Worker
// ignores it.
func (w *Worker) SetGround(g cluster.Ground) {
	if w != nil {
		w.Feed.SetGround(g)
	}
}

// SetHandling sets how packets are treated whatever the policies, and the prefix of log lines for Log rules. Until the
// first call packets are treated as by an earlier agent. A nil Worker ignores it.
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

// hostRules returns the set rules, or Calico's until SetHostRules is called.
func (w *Worker) hostRules() policy.HostRules {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.host != nil {
		return *w.host
	}
	return policy.HostRules{Inbound: policy.DefaultInbound(), Outbound: policy.DefaultOutbound()}
}

// hostsMoved reports whether host endpoints have other links, or other HostRules. Without host endpoints only Handling
// and DropFromPods matter.
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

// addHost completes the model with the node's own settings and interfaces.
func (w *Worker) addHost() (err error) {
	w.model.Host, w.model.Handling = w.hostRules(), w.handlingKnown()
	w.model.Interfaces, err = w.interfaces()
	return err
}

// placesHosts reports whether a host endpoint of this node is found by its addresses.
func (m *model) placesHosts() bool {
	return slices.ContainsFunc(m.HostEndpoints, func(h policy.HostEndpoint) bool { return h.Node == m.Node && h.Interface == "" })
}

// interfaces returns the node's interfaces; nil if no host endpoint is found by them.
func (w *Worker) interfaces() (map[string][]netip.Addr, error) {
	if !w.model.placesHosts() {
		return nil, nil
	}
	return Interfaces(w.Kernel)
}

// Interfaces returns the node's own links, without loopback and links of pods, with their addresses.
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
