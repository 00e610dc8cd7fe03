package nodestatus

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
)

// maxReported bounds the routes of one family in an object of the API: 2,000 are some 400 KB, and etcd takes 1.5 MB.
const maxReported = 2000

// Calico returns the requested classes of a CalicoNodeStatus, without lastUpdated. Unknown classes are ignored.
func (r *Report) Calico(classes []string) api.CalicoNodeStatusStatus {
	var out api.CalicoNodeStatusStatus
	if slices.Contains(classes, api.ClassAgent) {
		out.Agent = r.calicoAgent()
	}
	if slices.Contains(classes, api.ClassBGP) {
		out.BGP = r.calicoBGP()
	}
	if slices.Contains(classes, api.ClassRoutes) {
		out.Routes = r.calicoRoutes()
	}
	return out
}

// calicoAgent returns the state of the speaker. Tortie has one for both families, Calico two.
func (r *Report) calicoAgent() *api.NodeAgentStatus {
	speaker := func(address string) *api.NodeSpeaker {
		if address == "" {
			return &api.NodeSpeaker{State: "NotReady"}
		}
		s := &api.NodeSpeaker{
			State: "NotReady", Version: "tortie " + r.Version, RouterID: r.RouterID, LastBootTime: calicoTime(r.Started),
			LastReconfigurationTime: calicoTime(r.configured()),
		}
		if r.Ready {
			s.State = "Ready"
		}
		return s
	}
	return &api.NodeAgentStatus{BIRDV4: speaker(r.Address), BIRDV6: speaker(r.Address6)}
}

// configured returns when the latest of the sessions was made, lost or established; without any, the agent's start.
func (r *Report) configured() time.Time {
	last := r.Started
	for _, p := range r.Peers {
		if p.Since.After(last) {
			last = p.Since
		}
	}
	return last
}

func calicoTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func (r *Report) calicoBGP() *api.NodeBGPStatus {
	out := &api.NodeBGPStatus{}
	for _, p := range r.Peers {
		up, down, peers := &out.NumberEstablishedV4, &out.NumberNotEstablishedV4, &out.PeersV4
		if isIPv6(p.Address) {
			up, down, peers = &out.NumberEstablishedV6, &out.NumberNotEstablishedV6, &out.PeersV6
		}
		if p.State == established {
			*up++
		} else {
			*down++
		}
		*peers = append(*peers, api.NodePeer{PeerIP: p.Address, Type: calicoType(p.Kind), State: p.State, Since: calicoTime(p.Since)})
	}
	return out
}

// calicoType returns the type of a session.
func calicoType(kind string) string {
	switch kind {
	case "node", "reflector":
		return "NodePeer"
	case "global":
		return "GlobalPeer"
	}
	return "NodeMesh"
}

func (r *Report) calicoRoutes() *api.NodeRouteStatus {
	out := &api.NodeRouteStatus{}
	add := func(route api.NodeRoute) {
		into := &out.RoutesV4
		if isIPv6(route.Destination) {
			into = &out.RoutesV6
		}
		if len(*into) < maxReported {
			*into = append(*into, route)
		}
	}
	kinds := make(map[string]string, len(r.Peers))
	for _, p := range r.Peers {
		kinds[p.Address] = p.Kind
	}
	used := map[string]bool{}
	for _, route := range r.Routes.List {
		used[route.Destination] = true
		add(route.calico(kinds))
	}
	for _, p := range r.Learned {
		if !used[p.Prefix] {
			add(api.NodeRoute{Type: "RIB", Destination: p.Prefix, Gateway: p.NextHop, LearnedFrom: calicoSource(kinds, p.Peer)})
		}
	}
	return out
}

// calico converts a route to BIRD's form.
func (r Route) calico(kinds map[string]string) api.NodeRoute {
	out := api.NodeRoute{Type: "FIB", Destination: r.Destination, Gateway: r.Via, Interface: r.Device,
		LearnedFrom: api.NodeRouteFrom{SourceType: "Static"}}
	if r.Via == "" {
		out.Gateway = "N/A"
	}
	if r.Device == "" {
		out.Interface = r.Type
	}
	if r.Peer != "" {
		out.LearnedFrom = calicoSource(kinds, r.Peer)
	}
	return out
}

func calicoSource(kinds map[string]string, peer string) api.NodeRouteFrom {
	from := api.NodeRouteFrom{SourceType: "BGPPeer", PeerIP: peer}
	if calicoType(kinds[peer]) == "NodeMesh" {
		from.SourceType = "NodeMesh"
	}
	return from
}

// isIPv6 reports whether an address or a prefix is IPv6.
func isIPv6(text string) bool {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr().Is6()
	}
	a, err := netip.ParseAddr(text)
	return err == nil && a.Is6()
}
