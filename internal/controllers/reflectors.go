package controllers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

const (
	// patience is the number of pauses for which a reflector may be not Ready before another node replaces it, and nodes
	// must be too few before the mesh returns.
	patience = 4
	// defaultASN is the nodes' AS number if BGPConfiguration default has none.
	defaultASN = 64512
)

// reflection is the complete input of the plan for route reflectors.
type reflection struct {
	config.Reflectors
	// nodes come from a watch, in any order.
	nodes []inventory.Node
	// peer is BGPPeer api.ReflectorsPeer, config BGPConfiguration default; nil: there is none.
	peer   *api.BGPPeer
	config *api.BGPConfiguration
	// few is since when there are fewer nodes than three quarters of Above; zero: there are enough.
	few, now time.Time

	agents   int     // nodes with an agent that has written its address
	families [2]bool // IPv4 and IPv6: whether half of these have such an address
}

// reflectorAct is one change of the cluster's reflectors.
type reflectorAct string

// Changes, in the order of their occurrence in a cluster.
const (
	createPeer reflectorAct = "create the BGPPeer"
	copyMesh   reflectorAct = "copy the settings of the mesh to the BGPPeer"
	addNode    reflectorAct = "add a reflector"
	removeNode reflectorAct = "remove a reflector"
	meshOff    reflectorAct = "turn the mesh off"
	meshOn     reflectorAct = "turn the mesh on"
	deletePeer reflectorAct = "delete the BGPPeer"
)

// reflectorPlan is the next change, and the obstacle. The zero act is none.
type reflectorPlan struct {
	act  reflectorAct
	node *inventory.Node // of addNode and removeNode
	why  string          // of addNode and removeNode: the reason to print
	// problem is the obstacle, or empty. about is the object that an operator must check.
	problem string
	about   api.ObjectReference
}

// paced reports whether an act must follow the one before by a pause, and is recorded on the BGPPeer.
func (a reflectorAct) paced() bool {
	return slices.Contains([]reflectorAct{addNode, removeNode, meshOff, meshOn}, a)
}

// plan returns the next change. There is none while Count fit reflectors cover as many zones as possible: a stable
// cluster sees no write. Changes of nodes and of the mesh are a pause apart. Turning the mesh off, and removals after
// it is on again, wait for two pauses: peers learn of a change and its sessions before the next.
func (r *reflection) plan() reflectorPlan {
	r.nodes = slices.SortedFunc(slices.Values(r.nodes), func(a, b inventory.Node) int { return strings.Compare(a.Name, b.Name) })
	r.count()
	present := r.present()
	begun := r.peer != nil || len(present) > 0 || r.turnedOff()
	if r.peer != nil && r.peer.Annotations[api.AnnotationReflectors] == "" {
		return r.refuse(r.peer, &r.peer.Meta, "it is not kube-controllers', which would make one of this name: rename it, or set "+
			"bgp.automaticReflectors to false")
	}
	if !begun {
		return r.begin()
	}
	next := r.inForce(present)
	if !r.enough() {
		next = r.back(present)
	}
	if r.peer == nil && next.act != "" {
		next = reflectorPlan{act: createPeer, problem: next.problem, about: next.about}
	}
	if next.act.paced() && r.waits(next.act) {
		next.act = ""
	}
	return next
}

func (r *reflection) refuse(of api.Resource, m *api.Meta, text string) reflectorPlan {
	return reflectorPlan{problem: text, about: reference(of, m)}
}

// begin returns the plan for a cluster without any of the objects.
func (r *reflection) begin() reflectorPlan {
	if r.agents < r.Above {
		return reflectorPlan{}
	}
	if !r.meshIsOn() {
		return r.refuse(r.config, &r.config.Meta, "spec.nodeToNodeMeshEnabled is false, so that there is no mesh that route reflectors could "+
			"stand in for: turn it on, or set bgp.automaticReflectors to false")
	}
	for i := range r.nodes {
		n := &r.nodes[i]
		switch {
		case n.Routing.ClusterID != "":
			return r.refuse(n, &n.Meta, "annotation "+api.AnnotationReflector+" makes the node a route reflector of an operator's, so that "+
				"kube-controllers makes none: remove it, or set bgp.automaticReflectors to false")
		case !r.inside(n):
			return r.refuse(n, &n.Meta, fmt.Sprintf("annotation %s is %s and the cluster's AS number is %d, and routes are reflected inside of "+
				"one AS: kube-controllers makes no route reflectors", api.AnnotationASNumber, n.Routing.ASN, r.asn()))
		}
	}
	return reflectorPlan{act: createPeer}
}

// inForce returns the plan while there are enough nodes.
func (r *reflection) inForce(present []*inventory.Node) reflectorPlan {
	fit, unfit, altered := r.split(present)
	switch candidate := r.candidate(fit); {
	case r.copies():
		return reflectorPlan{act: copyMesh}
	case altered != nil:
		return reflectorPlan{act: addNode, node: altered, why: "its annotation " + api.AnnotationReflector + " was changed"}
	case len(fit) < r.Count && candidate != nil:
		return reflectorPlan{act: addNode, node: candidate, why: fmt.Sprintf("there are %d of %d reflectors", len(fit), r.Count)}
	case len(unfit) > 0 && len(fit) > 0:
		return reflectorPlan{act: removeNode, node: unfit[0], why: "others have taken its place"}
	case len(fit) > r.Count:
		return reflectorPlan{act: removeNode, node: r.surplus(fit), why: fmt.Sprintf("there are more than %d reflectors", r.Count)}
	case candidate != nil && len(fit) == r.Count && r.spreads(fit, candidate):
		return reflectorPlan{act: addNode, node: candidate, why: "no reflector is in its zone"}
	case len(fit) == r.Count && !slices.ContainsFunc(fit, notReady) && r.meshIsOn() && !r.turnedOff():
		return reflectorPlan{act: meshOff}
	case r.meshIsOn() && r.turnedOff():
		return r.refuse(r.config, &r.config.Meta, "the mesh is on although route reflectors stand in for it: set spec.nodeToNodeMeshEnabled to "+
			"false, or remove annotation "+api.AnnotationReflectors+", and kube-controllers does")
	}
	return reflectorPlan{}
}

// back returns the plan while there are too few nodes: the mesh first, the reflectors one by one, the BGPPeer last.
func (r *reflection) back(present []*inventory.Node) reflectorPlan {
	switch {
	case r.turnedOff():
		return reflectorPlan{act: meshOn}
	case !r.meshIsOn():
		return reflectorPlan{} // an operator turned it off
	case r.copies():
		return reflectorPlan{act: copyMesh}
	case len(present) > 0:
		return reflectorPlan{act: removeNode, node: present[0], why: "there are too few nodes for reflectors"}
	case r.peer != nil && !r.waits(deletePeer):
		return reflectorPlan{act: deletePeer}
	}
	return reflectorPlan{}
}

// enough reports whether there are enough nodes for reflectors: not fewer than three quarters of Above for a while.
func (r *reflection) enough() bool {
	return r.few.IsZero() || r.now.Sub(r.few) < patience*r.Pause
}

// count counts the nodes with an agent, and the nodes of each family.
func (r *reflection) count() {
	of := [2]int{}
	r.agents = 0
	for i := range r.nodes {
		if len(r.nodes[i].Stated) > 0 {
			r.agents++
		}
		for family, has := range familiesOf(&r.nodes[i]) {
			if has {
				of[family]++
			}
		}
	}
	for family, n := range of {
		r.families[family] = n > 0 && 2*n >= r.agents
	}
}

// familiesOf reports whether a node has an IPv4 and an IPv6 address.
func familiesOf(n *inventory.Node) (has [2]bool) {
	for _, a := range n.Stated {
		has[a.BitLen()/128] = true
	}
	return has
}

// isFew reports whether there are fewer nodes than three quarters of Above.
func (r *reflection) isFew() bool { return 4*r.agents < 3*r.Above }

func (r *reflection) meshIsOn() bool {
	return r.config == nil || r.config.Spec.NodeToNodeMeshEnabled == nil || *r.config.Spec.NodeToNodeMeshEnabled
}

// turnedOff reports whether kube-controllers has turned the mesh off.
func (r *reflection) turnedOff() bool {
	return r.config != nil && r.config.Annotations[api.AnnotationReflectors] != ""
}

// present returns the nodes that kube-controllers has made reflectors, by name.
func (r *reflection) present() (all []*inventory.Node) {
	for i := range r.nodes {
		if ours(&r.nodes[i]) {
			all = append(all, &r.nodes[i])
		}
	}
	return all
}

// split returns the reflectors that may stay and those that must be replaced. altered is one with an annotation that
// another writer has changed.
func (r *reflection) split(present []*inventory.Node) (fit, unfit []*inventory.Node, altered *inventory.Node) {
	for _, n := range present {
		lost := !n.Routing.Ready && r.age(n) >= patience*r.Pause
		switch {
		case lost || !r.able(n):
			unfit = append(unfit, n)
		case n.Routing.ClusterID != clusterIDOf(n):
			altered = n
		default:
			fit = append(fit, n)
		}
	}
	return fit, unfit, altered
}

// able reports whether a node may be a reflector, as far as this is stable: it has an address of each family that half
// of the nodes have.
func (r *reflection) able(n *inventory.Node) bool {
	has := familiesOf(n)
	return !n.Routing.Barred && r.inside(n) && len(n.Stated) > 0 && (has[0] || !r.families[0]) && (has[1] || !r.families[1])
}

func (r *reflection) asn() uint32 {
	if r.config != nil && r.config.Spec.ASNumber != nil {
		return *r.config.Spec.ASNumber
	}
	return defaultASN
}

// inside reports whether a node is in the cluster's AS.
func (r *reflection) inside(n *inventory.Node) bool {
	own, err := config.ParseASN(n.Routing.ASN)
	return n.Routing.ASN == "" || err == nil && own == r.asn()
}

// age returns how long a node has been Ready, or not.
func (r *reflection) age(n *inventory.Node) time.Duration {
	since, _ := time.Parse(time.RFC3339, n.Routing.Since)
	return r.now.Sub(since)
}

// candidate returns the next reflector beside some nodes; nil if there is none. It is in the zone with the fewest
// reflectors. There, the agents' former reflectors come first, as their sessions stay, then the oldest nodes.
func (r *reflection) candidate(beside []*inventory.Node) *inventory.Node {
	used := zones(beside)
	var best *inventory.Node
	for i := range r.nodes {
		n := &r.nodes[i]
		if n.Routing.ClusterID != "" && !ours(n) || slices.Contains(beside, n) || !r.able(n) || !n.Routing.Ready || r.age(n) < r.Pause {
			continue
		}
		if best == nil || cmp.Or(
			cmp.Compare(used[zone(n)], used[zone(best)]), -cmp.Compare(rank(n), rank(best)),
			strings.Compare(n.CreationTimestamp, best.CreationTimestamp)) < 0 {
			best = n
		}
	}
	return best
}

// ours reports whether kube-controllers has made a node a reflector.
func ours(n *inventory.Node) bool { _, ok := n.Labels[api.LabelReflector]; return ok }

func notReady(n *inventory.Node) bool { return !n.Routing.Ready }

// rank is higher for a node that the agents had made a reflector.
func rank(n *inventory.Node) int {
	if n.Routing.Word == "reflector" {
		return 1
	}
	return 0
}

func zone(n *inventory.Node) string { return n.Labels[api.LabelZone] }

// zones counts nodes by zone.
func zones(nodes []*inventory.Node) map[string]int {
	count := map[string]int{}
	for _, n := range nodes {
		count[zone(n)]++
	}
	return count
}

// spreads reports whether a node in place of a reflector would add a zone.
func (r *reflection) spreads(fit []*inventory.Node, candidate *inventory.Node) bool {
	used := zones(fit)
	return used[zone(candidate)] == 0 && len(used) < len(fit)
}

// surplus returns the most dispensable reflector: the youngest in the zone with the most.
func (r *reflection) surplus(fit []*inventory.Node) *inventory.Node {
	used := zones(fit)
	return slices.MaxFunc(fit, func(a, b *inventory.Node) int {
		return cmp.Or(cmp.Compare(used[zone(a)], used[zone(b)]), strings.Compare(a.CreationTimestamp, b.CreationTimestamp),
			strings.Compare(a.Name, b.Name))
	})
}

// waits reports whether the last change is too recent for an act. A time in the future comes from a wrong clock.
func (r *reflection) waits(act reflectorAct) bool {
	if r.peer == nil {
		return false
	}
	last, _ := time.Parse(time.RFC3339Nano, r.peer.Annotations[api.AnnotationReflectors])
	pause := r.Pause
	if act == meshOff || act == deletePeer || act == removeNode && !r.enough() {
		pause *= 2
	}
	since := r.now.Sub(last)
	return since < pause && since > -r.Pause
}

// copies reports whether the settings of the BGPPeer differ from the mesh's, which its sessions replace. While
// kube-controllers has the mesh off, only the BGPPeer has them.
func (r *reflection) copies() bool {
	if r.peer == nil || r.turnedOff() || !r.meshIsOn() {
		return false
	}
	want := settingsOfMesh(r.config)
	return want != settingsOfPeer(r.peer)
}

// sessionSettings are the common settings of the mesh and a BGPPeer. It is comparable.
type sessionSettings struct {
	password api.Place
	secret   bool // there is a password
	restart  string
	bfd      string
}

func settingsOfMesh(c *api.BGPConfiguration) (s sessionSettings) {
	if c != nil {
		s = sessionSettings{restart: c.Spec.NodeMeshMaxRestartTime, bfd: c.Annotations[api.AnnotationBFD]}
		s.password, s.secret = c.Spec.NodeMeshPassword.Place()
	}
	return s
}

func settingsOfPeer(p *api.BGPPeer) sessionSettings {
	s := sessionSettings{restart: p.Spec.MaxRestartTime, bfd: p.Annotations[api.AnnotationBFD]}
	s.password, s.secret = p.Spec.Password.Place()
	return s
}

// clusterIDOf returns a reflector's own cluster ID: its IPv4 address, else a hash of its name. With a common ID, a
// reflector would drop the reflected routes of a client that has lost its session with this reflector.
func clusterIDOf(n *inventory.Node) string {
	for _, a := range n.Stated {
		if a.Is4() {
			return a.String()
		}
	}
	id, _ := nodeaddr.RouterID(nodeaddr.HashedID, n.Name, netip.Addr{}) // a hash is no error
	return id.String()
}
