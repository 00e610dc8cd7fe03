package desired

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// peerObjects are the objects that decide on BGP sessions beyond the mesh.
type peerObjects struct {
	all         []api.BGPPeer
	filters     []api.BGPFilter
	secrets     map[api.Place]peering.Secret
	config, own api.BGPConfigurationSpec
	absent      map[string]bool
}

func peersOf(w state.Cluster) peerObjects {
	p := peerObjects{all: w.Peers, filters: w.Filters, config: w.BGP, own: w.OwnBGP, absent: absentNodes(w)}
	for place, known := range w.Passwords {
		if p.secrets == nil {
			p.secrets = make(map[api.Place]peering.Secret, len(w.Passwords))
		}
		p.secrets[place] = peering.Secret{Text: known.Text, Err: known.Err, Pending: known.Pending}
	}
	return p
}

// absentNodes returns the names in spec.node of BGPPeers that no Node has.
func absentNodes(w state.Cluster) map[string]bool {
	absent := map[string]bool{}
	for i := range w.Peers {
		if node := w.Peers[i].Spec.Node; node != "" {
			absent[node] = true
		}
	}
	for i := range w.Nodes {
		delete(absent, w.Nodes[i].Name)
	}
	if w.Self != nil {
		delete(absent, w.Self.Name)
	}
	return absent
}

// peeringInput is the input of the decision on this node's sessions.
func (s *Snapshot) peeringInput() peering.Input {
	in := peering.Input{
		Self: peering.Node{
			Name: s.Self.Name, Addr: s.Self.Addr.Addr(), Addr6: s.Self.Addr6.Addr(), ASN: s.Self.ASN, Port: s.Port,
			Reflector: s.Self.Reflector, ClusterID: s.Self.ClusterID, Labels: s.Self.Labels,
		},
		Others: make([]peering.Node, len(s.Others)),
		ASN:    s.ASN,
		Port:   s.meshPort,
		Mesh: peering.Mesh{On: s.Mesh, Password: s.settings.password.text, Restart: s.settings.restart, BFD: s.settings.bfd,
			Unknown: s.settings.password.unknown},
		Peers: s.peers.all, Absent: s.peers.absent, Filters: s.peers.filters, Secrets: s.peers.secrets,
		Config: s.peers.config, OwnConfig: s.peers.own,
		MaxPrefixes: s.Self.MaxPrefixes,
	}
	for i, m := range s.Others {
		in.Others[i] = peering.Node{
			Name: m.Name, Addr: m.Addr, Addr6: m.Addr6, ASN: m.ASN, Port: m.Port, Reflector: m.Reflector, ClusterID: m.ClusterID, Labels: m.Labels,
		}
	}
	return in
}

// Deciding is the last decision on sessions, and its input.
type Deciding struct {
	decision peering.Decision
	Problems []error
	State    peering.State
	from     decidedFrom
	links    map[string]peering.Link
}

// decidedFrom is all input of a decision, in a comparable form.
type decidedFrom struct {
	view        uint64 // the view's build
	addr, addr6 netip.Addr
	asn         uint32
	maxPrefixes int
}

// Decide puts the decision on sessions into a snapshot. It decides anew only if the input changed.
func (d *Deciding) Decide(s *Snapshot) {
	from := decidedFrom{s.build, s.Self.Addr.Addr(), s.Self.Addr6.Addr(), s.Self.ASN, s.Self.MaxPrefixes}
	if from != d.from {
		d.decision, d.State = peering.Decide(s.peeringInput(), d.State)
		d.Problems, d.from = s.problemsWith(d.decision.Problems), from
	}
	s.Peering = d.decision
}

// On adds what is known of the interfaces by which peers are named to the decision of a snapshot, and reports whether
// that changed.
func (d *Deciding) On(s *Snapshot, links map[string]peering.Link) (changed bool) {
	changed = !maps.Equal(links, d.links)
	if d.links = links; d.decision.Interfaces() == nil {
		return changed
	}
	s.Peering = d.decision.On(links)
	d.Problems = s.problemsWith(s.Peering.Problems)
	return changed
}

// problemsWith names objects as events do.
func (s *Snapshot) problemsWith(problems []error) []error {
	named := make([]error, len(problems))
	for i, err := range problems {
		named[i] = err
		var p *peering.Problem
		if errors.As(err, &p) {
			named[i] = InObject(p.Kind, api.Meta{Name: p.Name, UID: s.uidOf(p.Kind, p.Name)}, p.Err)
		}
	}
	return named
}

// labelsOf returns a node's labels, with the labels that only Calico's selectors see. Of a label in both, Kubernetes'
// counts.
func labelsOf(n api.Node, note func(error)) map[string]string {
	text := n.Annotations[api.AnnotationLabels]
	if text == "" {
		return n.Labels
	}
	merged := map[string]string{}
	if err := json.Unmarshal([]byte(text), &merged); err != nil {
		note(inNode(n.Name, fmt.Errorf("annotation %s %q is no JSON object of texts: correct or remove it", api.AnnotationLabels, cut(text))))
		return n.Labels
	}
	if merged == nil {
		return n.Labels
	}
	maps.DeleteFunc(merged, func(key, _ string) bool { // writers of the annotation may lack the right to such labels
		domain, _, _ := strings.Cut(key, "/")
		return domain == api.RestrictedDomain
	})
	maps.Copy(merged, n.Labels)
	return merged
}

// clusterID returns the cluster ID with which a node reflects routes, invalid if it does not, and whether an operator
// made it a reflector.
func clusterID(n api.Node, note func(error)) (id netip.Addr, reflector bool) {
	text := n.Annotations[api.AnnotationReflector]
	if text == "" {
		return netip.Addr{}, false
	}
	id, err := netip.ParseAddr(text)
	if err == nil && (!id.Is4() || id.IsUnspecified()) {
		err = errors.New("not four numbers")
	}
	if err != nil {
		note(inNode(n.Name, fmt.Errorf(
			"annotation %s %q has not the form of an IPv4 address, such as 244.0.0.1: the node is no part of the mesh, and reflects nothing",
			api.AnnotationReflector, cut(text))))
		return netip.Addr{}, true
	}
	return id, true
}
