package desired

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/routes"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func ptr[T any](v T) *T { return &v }

func texts(errs []error) []string {
	out := make([]string, len(errs))
	for i, err := range errs {
		out[i] = err.Error()
	}
	return out
}

func servedBy(ranges ...string) *api.BGPConfigurationSpec {
	spec := &api.BGPConfigurationSpec{}
	for _, r := range ranges {
		spec.ServiceClusterIPs = append(spec.ServiceClusterIPs, api.ServiceRange{CIDR: r})
	}
	return spec
}

func rangesOf(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, prefix(t))
	}
	return all
}

// claim returns a confirmed claim of a node, made at a time.
func claim(node, cidr, created string) api.BlockAffinity {
	return api.BlockAffinity{
		Meta: api.Meta{Name: node + "-" + cidr, CreationTimestamp: created},
		Spec: api.BlockAffinitySpec{Node: node, CIDR: cidr, State: api.AffinityConfirmed},
	}
}

// decide is Accept with the speaker's part: it accepts the paths without an Objection.
func (j *Judge) decide(paths []bgp.Path) (accepted []bgp.Path, refused []bgp.Objection) {
	var learned []bgp.Path
	for _, p := range paths {
		if o := j.Objection(p); o.Why == "" {
			learned = append(learned, p)
		} else if !j.owns(p.Prefix) {
			refused = append(refused, o)
		}
	}
	return j.Accept(learned, refused)
}

// Routes returns the routes that this node should have: see DesiredRoutes.
func (j *Judge) Routes(accepted []bgp.Path) []routes.Route {
	ways, _ := j.DesiredRoutes(accepted)
	return RoutesOf(ways)
}
