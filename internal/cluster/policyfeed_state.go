package cluster

import (
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// PolicyState is the State of a PolicyView, with the problems of its objects.
type PolicyState struct {
	policy.State
	Tiers map[string]policy.Tier // Calico's
	// Staged are policies that are tried out; NotTried has the problems of staged policies that are not, or only partly.
	Staged   []policy.Staged
	NotTried map[policy.ID][]string
	// Invalid has the problems of objects that count as far as they can be read. LeftOut is why policies do not count, or
	// count in an earlier version. Other objects have IDs like policies.
	Invalid, LeftOut map[policy.ID][]string
}

// PolicyReader makes States of the views of one feed. It reads each object once, as objects are never changed. If a
// policy becomes unreadable its last readable version counts. It is for one goroutine.
type PolicyReader struct {
	read  map[any]any // by object
	good  map[version]*policy.Policy
	tiers []*api.CalicoTier // for which read was made
}

// version identifies an object, unlike a later object with its name.
type version struct {
	policy.ID
	uid string
}

// reading is the result of reading an object.
type reading[T any] struct {
	of       T
	problems []string
	err      error
}

// State returns the state of a view, without Local. It shares the maps of the view.
func (r *PolicyReader) State(v *PolicyView) PolicyState {
	s := PolicyState{
		State: policy.State{
			Node: v.Node, Pods: v.Pods, Namespaces: v.Namespaces, Nodes: v.Nodes, Services: v.Calico.Services, Accounts: v.Calico.Accounts,
		},
		Invalid: map[policy.ID][]string{}, LeftOut: map[policy.ID][]string{}, NotTried: map[policy.ID][]string{},
	}
	before := *r
	if !slices.Equal(before.tiers, v.Calico.Tiers) {
		before.read = nil // policies are read with their tiers
	}
	*r = PolicyReader{read: make(map[any]any, len(before.read)),
		good: make(map[version]*policy.Policy, len(before.good)), tiers: v.Calico.Tiers}
	r.policies(&before, v, &s)
	readStaged(&v.Staged, &s)
	r.networkSets(&before, v, &s)
	for _, o := range v.Calico.GlobalNetworkSets {
		s.Sets = append(s.Sets, readOnce(r, &before, &s, o, policy.FromCalicoGlobalNetworkSet))
	}
	for _, o := range v.Calico.HostEndpoints {
		s.HostEndpoints = append(s.HostEndpoints, readOnce(r, &before, &s, o, policy.FromCalicoHostEndpoint))
	}
	for _, p := range v.Strays {
		id := policyID(p.Kind, "", p.Name)
		s.Invalid[id] = append(s.Invalid[id], p.Err.Error())
	}
	for _, p := range v.Problems {
		namespace, name, inside := strings.Cut(p.Name, "/")
		if !inside {
			namespace, name = "", p.Name
		}
		id := policyID(p.Kind, namespace, name)
		s.LeftOut[id] = append(s.LeftOut[id], p.Err.Error())
	}
	return s
}

func (r *PolicyReader) policies(before *PolicyReader, v *PolicyView, s *PolicyState) {
	tiers, wrong := policy.FromCalicoTiers(v.Calico.Tiers)
	s.Tiers = tiers
	for name, problems := range wrong {
		s.Invalid[policy.ID{Kind: "Tier", Name: name}] = problems
	}
	all := v.Policies(tiers)
	s.Policies = make([]policy.Policy, 0, len(all))
	for _, o := range all {
		got, known := before.read[o.Resource].(*reading[policy.Policy])
		if !known {
			got = &reading[policy.Policy]{}
			got.of, got.err = o.Read()
		}
		r.read[o.Resource] = got
		p, named := &got.of, version{o.ID, o.GetMeta().UID}
		if got.err != nil {
			s.LeftOut[o.ID] = []string{got.err.Error()}
			good := before.good[named]
			if good == nil {
				continue
			}
			placed := good.In(tiers)
			p = &placed
		} else if len(p.Problems) > 0 {
			s.Invalid[o.ID] = p.Problems
		}
		r.good[named] = p
		s.Policies = append(s.Policies, *p)
	}
}

func (r *PolicyReader) networkSets(before *PolicyReader, v *PolicyView, s *PolicyState) {
	surplus := policy.FindSurplus(v.Calico.NetworkSets)
	for _, o := range v.Calico.NetworkSets {
		set := readOnce(r, before, s, o, policy.FromCalicoNetworkSet)
		if of, found := surplus[o]; found {
			set = set.Sharing(of)
			s.invalid(o, of.Problems...)
		}
		s.Sets = append(s.Sets, set)
	}
}

// invalid adds problems of an object.
func (s *PolicyState) invalid(o api.Resource, problems ...string) {
	if m := o.GetMeta(); len(problems) > 0 {
		id := policyID(o.ResourceType(), m.Namespace, m.Name)
		s.Invalid[id] = append(slices.Clip(s.Invalid[id]), problems...)
	}
}

func readOnce[O api.Resource, T any](r, before *PolicyReader, s *PolicyState, o O, read func(O) (T, []string)) T {
	got, known := before.read[o].(reading[T])
	if !known {
		got.of, got.problems = read(o)
	}
	r.read[o] = got
	s.invalid(o, got.problems...)
	return got.of
}

// PolicyObject is an object and its conversion to a policy.
type PolicyObject struct {
	api.Resource
	ID policy.ID
	// Read converts the object. Its error is why the policy does not count.
	Read func() (policy.Policy, error)
}

// Policies returns the policy objects of all kinds, in no particular order. tiers are Calico's.
func (v *PolicyView) Policies(tiers map[string]policy.Tier) []PolicyObject {
	all := make([]PolicyObject, 0,
		len(v.NetworkPolicies)+len(v.ClusterNetworkPolicies)+len(v.Calico.NetworkPolicies)+len(v.Calico.GlobalNetworkPolicies))
	add := func(o api.Resource, read func() (policy.Policy, error)) {
		all = append(all, PolicyObject{o, policyID(o.ResourceType(), o.GetMeta().Namespace, o.GetMeta().Name), read})
	}
	for _, o := range v.NetworkPolicies {
		add(o, func() (policy.Policy, error) { return policy.FromNetworkPolicy(o), nil })
	}
	for _, o := range v.ClusterNetworkPolicies {
		add(o, func() (policy.Policy, error) { return policy.FromClusterNetworkPolicy(o) })
	}
	for _, o := range v.Calico.NetworkPolicies {
		add(o, func() (policy.Policy, error) { return policy.FromCalicoNetworkPolicy(o, tiers) })
	}
	for _, o := range v.Calico.GlobalNetworkPolicies {
		add(o, func() (policy.Policy, error) { return policy.FromCalicoGlobalNetworkPolicy(o, tiers) })
	}
	return all
}

// policyID returns the ID of an object. It distinguishes Calico's NetworkPolicy from Kubernetes'.
func policyID(of api.Type, namespace, name string) policy.ID {
	kind := of.Kind
	switch of {
	case (*api.CalicoNetworkPolicy)(nil).ResourceType():
		kind = policy.KindCalicoNetworkPolicy
	case (*api.CalicoGlobalNetworkPolicy)(nil).ResourceType():
		kind = policy.KindCalicoGlobalNetworkPolicy
	}
	return policy.ID{Kind: kind, Namespace: namespace, Name: name}
}
