package policyview

import (
	"maps"
	"slices"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
)

// things are the file's objects that are no policies, but that Calico's policies depend on.
type things struct {
	tiers     map[string]policy.Tier // after the change; nil: unchanged
	tierNames []string               // in the file
	wasTier   map[string]bool        // tierNames that exist in the cluster
	sets      []policy.NetworkSet
	hosts     []policy.HostEndpoint
	felix     []*api.FelixConfiguration
	rules     *policy.HostRules // after the change; nil: unchanged
	felixSaid []string
}

func countThings(v *cluster.CalicoView) int {
	return len(v.Tiers) + len(v.NetworkSets) + len(v.GlobalNetworkSets) + len(v.HostEndpoints)
}

// readThings converts the file's objects that are no policies. tiers are the cluster's.
func (c *change) readThings(tiers map[string]policy.Tier) {
	v := &c.view.Calico
	written, wrong := policy.FromCalicoTiers(v.Tiers)
	if len(written) > 0 {
		c.tierNames, c.wasTier = slices.Sorted(maps.Keys(written)), map[string]bool{}
		for name := range written {
			_, c.wasTier[name] = tiers[name]
			c.invalid(policy.ID{Kind: "Tier", Name: name}, wrong[name])
		}
		c.tiers = maps.Clone(tiers)
		if c.tiers == nil {
			c.tiers = map[string]policy.Tier{}
		}
		maps.DeleteFunc(c.tiers, func(name string, _ policy.Tier) bool { return c.deletes && slices.Contains(c.tierNames, name) })
		if !c.deletes {
			maps.Copy(c.tiers, written)
		}
	}
	for _, o := range v.NetworkSets {
		set, problems := policy.FromCalicoNetworkSet(o)
		c.addSet(set, problems)
	}
	for _, o := range v.GlobalNetworkSets {
		set, problems := policy.FromCalicoGlobalNetworkSet(o)
		c.addSet(set, problems)
	}
	for _, o := range v.HostEndpoints {
		host, problems := policy.FromCalicoHostEndpoint(o)
		c.hosts = append(c.hosts, host)
		c.invalid(policy.ID{Kind: policy.KindHostEndpoint, Name: host.Name}, problems)
	}
}

func (c *change) addSet(set policy.NetworkSet, problems []string) {
	c.sets = append(c.sets, set)
	c.invalid(setID(&set), problems)
}

func setID(s *policy.NetworkSet) policy.ID {
	if s.Namespace == "" {
		return policy.ID{Kind: "GlobalNetworkSet", Name: s.Name}
	}
	return policy.ID{Kind: "NetworkSet", Namespace: s.Namespace, Name: s.Name}
}

// movesAll reports whether the change may affect policies that are not in the file.
func (c *change) movesAll() bool { return c.tiers != nil || len(c.sets) > 0 }

// overThings is over for objects that are no policies.
func (c *change) overThings(s policy.State) (after policy.State, said []string) {
	after = s
	for _, name := range c.tierNames {
		what := "new"
		switch {
		case c.deletes && !c.wasTier[name]:
			what = "not there"
		case c.deletes:
			what = "deleted"
		case c.wasTier[name]:
			what = "changed"
		}
		said = append(said, "Tier "+name+": "+what)
	}
	after.Sets = slices.Clone(s.Sets)
	for i := range c.sets {
		id := setID(&c.sets[i])
		said = append(said, id.String()+": "+put(&after.Sets, c.sets[i], c.deletes, func(o policy.NetworkSet) bool { return setID(&o) == id }))
	}
	after.HostEndpoints = slices.Clone(s.HostEndpoints)
	for _, h := range c.hosts {
		said = append(said, policy.KindHostEndpoint+" "+h.Name+": "+
			put(&after.HostEndpoints, h, c.deletes, func(o policy.HostEndpoint) bool { return o.Name == h.Name }))
	}
	if c.rules != nil {
		after.Host = *c.rules
	}
	return after, append(said, c.felixSaid...)
}

// concernsHosts reports whether the change affects host endpoints, or the ports that their policies leave open.
func (c *change) concernsHosts() bool { return len(c.hosts)+len(c.felix) > 0 }

// readFelix computes the HostRules of this node with the file's FelixConfigurations. found are the cluster's, which it
// changes.
func (c *change) readFelix(s config.PolicyView, found []api.FelixConfiguration) {
	for _, o := range c.felix {
		what := put(&found, *o, c.deletes, func(f api.FelixConfiguration) bool { return f.Name == o.Name })
		c.felixSaid = append(c.felixSaid, "FelixConfiguration "+o.Name+": "+what)
	}
	if len(c.felix) == 0 {
		return
	}
	rules, problems := hostRules(s, found)
	c.rules = &rules
	for _, problem := range problems {
		c.problems = append(c.problems, problem.Error())
	}
}

// hostRules returns the agent's HostRules without Nodes, the addresses between which tunnels pass.
func hostRules(s config.PolicyView, found []api.FelixConfiguration) (rules policy.HostRules, problems []error) {
	spec := s.Felix
	for _, name := range []string{"node." + s.Nodename, api.DefaultName} {
		for i := range found {
			if found[i].Name == name {
				spec = spec.Over(found[i].Spec)
			}
		}
	}
	felix, problems := desired.ParseFelix(spec, desired.Felix{})
	snapshot := desired.Snapshot{Felix: felix}
	return snapshot.HostRules(), problems
}
