package bgp

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/tortie-net/tortie/internal/bgp/policy"
)

// Policy is what passes on the sessions, in both directions. Its zero value takes what every peer announces, but for martians,
// paths of its AS number that are not its own and loops, and passes on nothing that was learned.
type Policy struct {
	// Transit: learned paths inside of one of these, and not inside of one of Hidden, are passed on where BGP passes anything
	// on, to peers in another AS and by a reflector; all other learned paths never are. Hidden holds for what this node
	// originates, too.
	Transit, Hidden []netip.Prefix
	// Refuse are prefixes that nobody may announce to us, and next hops: this node's own addresses.
	Refuse []netip.Prefix
	// Tags are communities for what is announced.
	Tags []policy.Tag
	// Links are the interfaces that rules can name.
	Links []policy.Link
	// Normal4 and Normal6 are the priorities of routes that nothing sets; 0 is Calico's.
	Normal4, Normal6 uint32
	// Import and Export are the rules that hold for one peer before all these, but for what is always refused. A peer that is not
	// in here has none.
	Import, Export map[netip.Addr]*policy.Rules
}

func (p Policy) base() *policy.Base {
	return &policy.Base{
		Transit: p.Transit, Hidden: p.Hidden, Refuse: p.Refuse, Tags: p.Tags, Links: p.Links,
		Normal4: p.Normal4, Normal6: p.Normal6,
	}
}

func (p Policy) validate() error {
	for name, list := range map[string][]netip.Prefix{"transit": p.Transit, "hidden": p.Hidden, "refused": p.Refuse} {
		for _, prefix := range list {
			if !prefix.IsValid() || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
				return fmt.Errorf("%s prefix %q: must be a prefix without host bits", name, prefix)
			}
		}
	}
	return nil
}

// SetPolicy implements Speaker.
func (s *Server) SetPolicy(ctx context.Context, p Policy) error {
	if err := p.validate(); err != nil {
		return err
	}
	return s.do(ctx, func(context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		s.policy = p
		return nil
	})
}
