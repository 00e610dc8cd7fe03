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

// Links returns the links of a node's pods, by name. A link of several pods is left out, so that it is closed; same
// names it with these pods. A link's name has 44 bits of a digest: a user who may create pods can find a name that
// would put his own pod's policies on another pod's link.
func Links(local []policy.PodKey) (links map[string]policy.PodKey, same []string) {
	return linksBy(local, LinkOf)
}

// LinkOf returns the name of a pod's link.
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

// podProtocols are the protocols of routes to pods: the plugins' protocol, and Felix's own, which it uses if
// configured.
var podProtocols = []netlinkx.Protocol{netlinkx.ProtocolBoot, netlinkx.ProtocolFelix}

// routed holds the addresses that the kernel routes to links of pods: it knows a pod's addresses before the API server
// does.
type routed struct {
	byLink map[string][]netip.Addr
	links  map[netip.Addr]string
}

// localRoutes reads the routes to pods.
type localRoutes struct {
	kernel *netlinkx.Conn
	names  map[int]string // of links, by index; the kernel does not use an index twice
}

// read lists the routes. It reads the names of links if a route has a new link.
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

// localPod returns a pod of this node, which has the link, with the addresses that the kernel routes to it. Before
// there are routes the API's addresses count, unless they are routed to another pod of the node.
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

// unroutedPod returns a pod without a route in the kernel, such as a pod of another node, without the addresses that
// are routed to a pod of this node.
func (r routed) unroutedPod(p *policy.Pod) *policy.Pod {
	isOthers := func(a netip.Addr) bool { return r.links[a] != "" }
	if !slices.ContainsFunc(p.Addresses, isOthers) && !slices.ContainsFunc(p.Unsure, isOthers) {
		return p
	}
	own := *p
	own.Addresses, own.Unsure = slices.DeleteFunc(slices.Clone(p.Addresses), isOthers), slices.DeleteFunc(slices.Clone(p.Unsure), isOthers)
	return &own
}
