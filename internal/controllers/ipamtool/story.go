package ipamtool

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Story is all that is known about one address.
type Story struct {
	Address netip.Addr `json:"address"`
	// Pool is the name of the address's pool; empty if it is in none.
	Pool string `json:"pool,omitempty"`
	// Reserved is the name of the address's IPReservation.
	Reserved string `json:"reserved,omitempty"`
	// Block is the range of the address's block, Owner the block's owner, Claim the state of the owner's affinity.
	Block string `json:"block,omitempty"`
	Owner string `json:"owner,omitempty"`
	Claim string `json:"claim,omitempty"`
	// Holder is the address's allocation; nil if it is free.
	Holder *Held `json:"holder,omitempty"`
	// With are the other addresses of the same handle.
	With []netip.Addr `json:"with,omitempty"`
	// Users are the pods and tunnels that name the address as their own.
	Users []string `json:"users,omitempty"`
	// Findings are the findings about the address.
	Findings []audit.Finding `json:"findings,omitempty"`
}

// writeStories writes the stories of addresses.
func (t *tool) writeStories(v *inventory.View, addrs []netip.Addr, asJSON bool) error {
	findings := audit.Check(v)
	stories := make([]Story, len(addrs))
	for i, a := range addrs {
		stories[i] = newStory(v, a, findings)
	}
	if asJSON {
		return writeJSON(t.Out, stories)
	}
	for i := range stories {
		if i > 0 {
			fmt.Fprintln(t.Out)
		}
		if err := table(t.Out, stories[i].rows()); err != nil {
			return err
		}
	}
	return nil
}

func newStory(v *inventory.View, a netip.Addr, findings []audit.Finding) Story {
	s := Story{Address: a}
	for _, p := range v.Pools {
		if r, err := netip.ParsePrefix(p.Spec.CIDR); err == nil && r.Contains(a) {
			s.Pool = p.Name
		}
	}
	for _, r := range v.Reservations {
		for _, text := range r.Spec.ReservedCIDRs {
			if cidr, err := netip.ParsePrefix(text); err == nil && cidr.Contains(a) || text == a.String() {
				s.Reserved = r.Name
			}
		}
	}
	for i := range v.Blocks {
		if b := &v.Blocks[i]; b.CIDR.IsValid() && b.CIDR.Contains(a) {
			s.describeBlock(v, b)
		}
	}
	for i := range v.Pods {
		if p := &v.Pods[i]; p.Uses(a) && !p.HostNetwork {
			s.Users = append(s.Users, fmt.Sprintf("pod %s/%s on %s%s", p.Namespace, p.Name, p.Node, ended(p)))
		}
	}
	for i := range v.Nodes {
		for kind, tunnel := range v.Nodes[i].Tunnels {
			if tunnel == a {
				s.Users = append(s.Users, fmt.Sprintf("%s of node %s", kind, v.Nodes[i].Name))
			}
		}
	}
	s.Findings = where(findings, func(f audit.Finding) bool {
		return f.Address == a || f.Handle != "" && s.Holder != nil && f.Handle == s.Holder.Handle
	})
	return s
}

func ended(p *inventory.Pod) string {
	if p.Finished {
		return ", which has ended"
	}
	return ""
}

// describeBlock adds the address's block and holder.
func (s *Story) describeBlock(v *inventory.View, b *inventory.Block) {
	index := v.Index()
	s.Block, s.Owner, s.Claim = b.CIDR.String(), b.Affinity, "none"
	if b.Damage != nil {
		s.Owner, s.Claim = "", "the block is damaged: "+b.Damage.Error()
		return
	}
	for i := range v.Affinities {
		if a := &v.Affinities[i]; a.Spec.CIDR == s.Block && b.Affinity == cmp.Or(a.Spec.Type, api.AffinityHost)+":"+a.Spec.Node {
			s.Claim = string(a.Spec.State)
		}
	}
	for i := range b.Allocations {
		if a := &b.Allocations[i]; a.Address == s.Address {
			held := newHeld(b, a, index)
			s.Holder = &held
		}
	}
	if s.Holder == nil || s.Holder.Handle == "" {
		return
	}
	for _, h := range audit.Holders(v, index) {
		for _, a := range h.Addresses {
			if h.Handle == s.Holder.Handle && a.Address != s.Address {
				s.With = append(s.With, a.Address)
			}
		}
	}
}

// rows returns the story as rows of text.
func (s *Story) rows() [][]string {
	rows := [][]string{{"Address", s.Address.String()}, {"Pool", cmp.Or(s.Pool, "none has it")}}
	if s.Reserved != "" {
		rows = append(rows, []string{"Reserved", "by IPReservation " + s.Reserved + ": it is given only to who asks for it"})
	}
	if s.Block == "" {
		rows = append(rows, []string{"Block", "none yet: nobody has claimed the range around it"})
	} else {
		owner := cmp.Or(strings.TrimPrefix(s.Owner, api.AffinityHost+":"), "nobody")
		rows = append(rows, []string{"Block", fmt.Sprintf("%s, owned by %s; claim: %s", s.Block, owner, s.Claim)})
	}
	rows = append(rows, s.holderRows()...)
	for i, user := range s.Users {
		label := ""
		if i == 0 {
			label = "Used by"
		}
		rows = append(rows, []string{label, user})
	}
	if len(s.Users) == 0 {
		rows = append(rows, []string{"Used by", "nobody says that he has it"})
	}
	for i, f := range s.Findings {
		label := ""
		if i == 0 {
			label = "Wrong"
		}
		rows = append(rows, []string{label, fmt.Sprintf("%s %s: %s", f.Grade, f.Kind, f.Detail)})
	}
	return slices.DeleteFunc(rows, func(r []string) bool { return r[1] == "" })
}

func (s *Story) holderRows() [][]string {
	h := s.Holder
	switch {
	case h == nil:
		return [][]string{{"Held by", "nobody: it is free"}}
	case h.Resting:
		return [][]string{{"Held by", "nobody: it was released, and rests"}}
	}
	who := h.Class
	if h.Pod != "" {
		who = fmt.Sprintf("pod %s/%s", h.Namespace, h.Pod)
	}
	if h.Service != "" {
		who = fmt.Sprintf("Service %s/%s", h.Namespace, h.Service)
	}
	if h.Node != "" {
		who += " on " + h.Node
	}
	if h.Borrowed {
		who += ", borrowed"
	}
	rows := [][]string{{"Held by", who}, {"Handle", cmp.Or(h.Handle, "none")}, {"Sequence", fmt.Sprint(h.Sequence)}}
	if h.Since != "" {
		rows = append(rows, []string{"Since", h.Since})
	}
	if len(s.With) > 0 {
		texts := make([]string, len(s.With))
		for i, a := range s.With {
			texts[i] = a.String()
		}
		rows = append(rows, []string{"With", strings.Join(texts, ", ") + ", of the same handle"})
	}
	if h.InUse {
		return append(rows, []string{"In use", "yes, as far as can be told"})
	}
	return append(rows, []string{"In use", "no: " + h.Why + "; the controllers free it when its grace period is over"})
}
