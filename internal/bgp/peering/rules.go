package peering

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// rules are the rules of BGPFilters for paths of both families.
type rules struct {
	import4, import6, export4, export6 *policy.Rules
}

// in returns the rules for a session with peer.
func (r rules) in(peer netip.Addr) (imports, exports *policy.Rules) {
	switch {
	case peer.Zone() != "": // its session has both families
		return policy.Join(r.import4, r.import6), policy.Join(r.export4, r.export6)
	case peer.Is4():
		return r.import4, r.export4
	}
	return r.import6, r.export6
}

// joined joins the rules of several filters in order.
func joined(all []rules) rules {
	pick := func(of func(rules) *policy.Rules) *policy.Rules {
		list := make([]*policy.Rules, len(all))
		for i, r := range all {
			list[i] = of(r)
		}
		return policy.Join(list...)
	}
	return rules{
		import4: pick(func(r rules) *policy.Rules { return r.import4 }),
		import6: pick(func(r rules) *policy.Rules { return r.import6 }),
		export4: pick(func(r rules) *policy.Rules { return r.export4 }),
		export6: pick(func(r rules) *policy.Rules { return r.export6 }),
	}
}

// filter is a compiled BGPFilter.
type filter struct {
	rules
	spec   api.BGPFilterSpec
	broken bool
}

// filters compiles all BGPFilters, in use or not: errors are reported when a filter is written.
func filters(all []api.BGPFilter) (map[string]filter, []error) {
	read := make(map[string]filter, len(all))
	var problems []error
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b api.BGPFilter) int { return cmp.Compare(a.Name, b.Name) })
	for i := range all {
		spec := &all[i].Spec
		f := filter{spec: *spec}
		for _, part := range []struct {
			into *(*policy.Rules)
			d    policy.Direction
			of   wire.Family
		}{
			{&f.import4, policy.Import, wire.IPv4}, {&f.import6, policy.Import, wire.IPv6},
			{&f.export4, policy.Export, wire.IPv4}, {&f.export6, policy.Export, wire.IPv6},
		} {
			compiled, errs := policy.Compile(all[i].Name, spec, part.d, part.of)
			*part.into = compiled
			f.broken = f.broken || len(errs) > 0
			for _, err := range errs {
				problems = append(problems, &Problem{Kind: (*api.BGPFilter)(nil).ResourceType(), Name: all[i].Name, Err: err})
			}
		}
		read[all[i].Name] = f
	}
	return read, problems
}

// filters joins the rules of the filters that the BGPPeer names.
func (r *resolver) filters() {
	var all []rules
	for _, name := range r.spec.Filters {
		f, ok := r.known[name]
		switch {
		case !ok:
			r.fail("spec.filters: BGPFilter %s does not exist: create it, or remove its name", name)
		case f.broken:
			r.fail("spec.filters: BGPFilter %s cannot be used: see what is said of it", name)
		}
		all = append(all, f.rules)
		r.form.past.Filters = append(r.form.past.Filters, api.BGPFilter{Meta: api.Meta{Name: name}, Spec: f.spec})
	}
	r.form.rules = joined(all)
}

// tags returns the communities to add to announcements: the node's own object defines them, or else the cluster's. A
// name that the node's own object does not define may be one of the cluster's. A problem names the object with the
// fault.
func tags(in *Input) ([]policy.Tag, []*Problem) {
	from, name := in.Config.PrefixAdvertisements, api.DefaultName
	known := in.Config.Communities
	if in.OwnConfig.PrefixAdvertisements != nil {
		from, name = in.OwnConfig.PrefixAdvertisements, "node."+in.Self.Name
		known = slices.Concat(in.OwnConfig.Communities, known)
	}
	var found []policy.Tag
	var problems []*Problem
	for i, a := range from {
		tag, err := readTag(a, known)
		if err != nil {
			err = fmt.Errorf("spec.prefixAdvertisements[%d]: %w", i, err)
			problems = append(problems, &Problem{Kind: (*api.BGPConfiguration)(nil).ResourceType(), Name: name, Err: err})
			continue
		}
		found = append(found, tag)
	}
	return found, problems
}

func readTag(a api.PrefixAdvertisement, known []api.Community) (policy.Tag, error) {
	prefix, err := netip.ParsePrefix(a.CIDR)
	if err != nil || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
		return policy.Tag{}, fmt.Errorf("cidr %q: use a CIDR with its host bits zero", a.CIDR)
	}
	tag := policy.Tag{Prefix: prefix}
	for _, text := range a.Communities {
		value, err := policy.ParseCommunity(text)
		if i := slices.IndexFunc(known, func(c api.Community) bool { return c.Name == text }); err != nil && i >= 0 {
			value, err = policy.ParseCommunity(known[i].Value)
		} else if err != nil {
			err = fmt.Errorf("neither a community, such as 64512:100 or 64512:1:2, nor a name that spec.communities gives")
		}
		if err != nil {
			return policy.Tag{}, fmt.Errorf("communities: %q: %w", text, err)
		}
		tag.Communities = append(tag.Communities, value)
	}
	return tag, nil
}
