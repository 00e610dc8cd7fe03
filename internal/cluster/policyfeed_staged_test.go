package cluster

import (
	"log/slog"
	"testing"

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
