package cluster

import (
	"log/slog"
	"testing"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// A feed with staged policies wakes its reader when all of their kinds have been listed.
func TestStagedPoliciesAreListed(t *testing.T) {
	cfg, _, _ := recorded(t)
	put(t, cfg, calicoPath+"stagedglobalnetworkpolicies", "tried",
		calicoObject("StagedGlobalNetworkPolicy", "tried", "", `"types":["Ingress"]`))
	f, err := NewPolicyFeed(Server{Config: cfg, Group: labtest.Current(t)}, "self", slog.New(slog.NewTextHandler(t.Output(), nil)))
	errtest.Must(t, err)
	errtest.Must(t, f.WatchStaged())
	if f.staged.full() {
		t.Error("listed before it is asked for")
	}
	r := startFeed(t, f)
	r.want(t, policy.Interest{})
	r.await(t, "staged policies", func(v *PolicyView) bool { return v.Staged.Listed })
	if all := r.view.Staged.GlobalNetworkPolicies; len(all) != 1 || all[0].Name != "tried" {
		t.Errorf("%+v", all)
	}
}

// A staged policy is for the policy that Calico's clients know by its name. In crd.projectcalico.org/v1 that policy may
// be stored with the prefix default.; in projectcalico.org/v3 the prefix is part of the name.
func TestStagedPolicyIsForAName(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	aNamespace(t, cfg, "tried")
	in := calicoPath + "namespaces/tried/"
	put(t, cfg, in+"networkpolicies", "default.web", calicoObject("NetworkPolicy", "default.web", "", `"types":["Ingress"]`))
	put(t, cfg, in+"stagednetworkpolicies", "web",
		calicoObject("StagedNetworkPolicy", "web", "", `"stagedAction":"Delete","types":["Ingress"]`))
	f, err := NewPolicyFeed(Server{Config: cfg, Group: labtest.Current(t)}, "self", slog.New(slog.NewTextHandler(t.Output(), nil)))
	errtest.Must(t, err)
	errtest.Must(t, f.WatchStaged())
	r := startFeed(t, f)
	r.want(t, policy.Interest{})
	r.await(t, "both policies", func(v *PolicyView) bool { return len(v.Calico.NetworkPolicies)*len(v.Staged.NetworkPolicies) == 1 })
	var reader PolicyReader
	state := reader.State(&r.view)
	after, _ := policy.WithStaged(state.State, state.Staged)
	if deleted := len(after.Policies) == 0; deleted != (labtest.Group(t) == groups.V1) {
		t.Errorf("in %s default.web is deleted: %t", labtest.Group(t), deleted)
	}
}
