package policies

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/policy"
)

// Links are the links of a node's pods, by name. A link that several pods have is left out, so that it is closed, and
// named with them in same: its name has 44 bits of a digest, for which a user who may make pods can find a name that
// gives another pod's link his own pod's policies.
func Links(local []policy.PodKey) (links map[string]policy.PodKey, same []string) {
	return linksBy(local, LinkOf)
}

// LinkOf is the name of a pod's link.
func LinkOf(key policy.PodKey) string {
	return podnet.HostVethName(podnet.DefaultVethPrefix, key.Namespace, key.Name)
}

func linksBy(local []policy.PodKey, name func(policy.PodKey) string) (links map[string]policy.PodKey, same []string) {
	links = make(map[string]policy.PodKey, len(local))
	several := map[string][]string{}
	for _, key := range local {
		link := name(key)
		if other, taken := links[link]; taken && several[link] == nil {
			several[link] = []string{other.String()}
		}
		if links[link] = key; several[link] != nil {
			several[link] = append(several[link], key.String())
		}
	}
	for _, link := range slices.Sorted(maps.Keys(several)) {
		delete(links, link)
		same = append(same, fmt.Sprintf("pods %s are closed: their names give the same link, %s: give one of them another name",
			strings.Join(several[link], " and "), link))
	}
	return links, same
}

// podProtocols are the protocols of routes to pods: the plugins', and Felix's if it is configured to use its own.
var podProtocols = []netlinkx.Protocol{netlinkx.ProtocolBoot, netlinkx.ProtocolFelix}

// routed are the addresses that the kernel has routes to by links of pods: it knows a pod's addresses before the API
// server does.
type routed struct {
	byLink map[string][]netip.Addr
	links  map[netip.Addr]string
}

// localRoutes reads the routes to pods.
type localRoutes struct {
	kernel *netlinkx.Conn
	names  map[int]string // of links, by index; the kernel does not use an index twice
}

// read lists the routes. Names of links are asked for if a route has one that is new.
func (l *localRoutes) read() (routed, error) {
	var routes []netlinkx.Route
	for _, protocol := range podProtocols {
		found, err := l.kernel.Routes(netlinkx.RouteFilter{Protocol: protocol})
		if err != nil {
			return routed{}, err
		}
		routes = append(routes, found...)
	}
	routes = slices.DeleteFunc(routes, func(r netlinkx.Route) bool { return !r.Dst.IsSingleIP() || r.Via.IsValid() || r.Dev == 0 })
	if slices.ContainsFunc(routes, func(r netlinkx.Route) bool { return l.names[r.Dev] == "" }) {
		if err := l.readNames(); err != nil {
			return routed{}, err
		}
	}
	out := routed{byLink: map[string][]netip.Addr{}, links: map[netip.Addr]string{}}
	for _, r := range routes {
		if name := l.names[r.Dev]; strings.HasPrefix(name, podnet.DefaultVethPrefix) {
			out.byLink[name] = append(out.byLink[name], r.Dst.Addr())
			out.links[r.Dst.Addr()] = name
		}
	}
	for _, addrs := range out.byLink {
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	return out, nil
}

func (l *localRoutes) readNames() error {
	links, err := l.kernel.Links()
	if err != nil {
		return err
	}
	l.names = make(map[int]string, len(links))
	for _, link := range links {
		l.names[link.Index] = link.Name
	}
	return nil
}

// localPod returns a pod of this node, whose link it is, with the addresses that the kernel routes to it. Before there
// are routes, what the API says counts, as far as no other pod of the node has it.
func (r routed) localPod(p *policy.Pod, link string) *policy.Pod {
	addrs, known := r.byLink[link]
	if !known {
		return r.unroutedPod(p)
	}
	if slices.Equal(addrs, p.Addresses) && len(p.Unsure) == 0 {
		return p
	}
	own := *p
	own.Addresses, own.Unsure = addrs, nil
	return &own
}

// unroutedPod returns a pod that the kernel has no route to, such as one of another node, without the addresses that
// are routed to a pod of this one.
func (r routed) unroutedPod(p *policy.Pod) *policy.Pod {
	isOthers := func(a netip.Addr) bool { return r.links[a] != "" }
	if !slices.ContainsFunc(p.Addresses, isOthers) && !slices.ContainsFunc(p.Unsure, isOthers) {
		return p
	}
	own := *p
	own.Addresses, own.Unsure = slices.DeleteFunc(slices.Clone(p.Addresses), isOthers), slices.DeleteFunc(slices.Clone(p.Unsure), isOthers)
	return &own
}
