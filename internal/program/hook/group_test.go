package hook

import (
	"path/filepath"
	"testing"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// TestDefinitionsOfTheOtherGroup has a cluster with projectcalico.org/v3 alone: an upgrade of the chart creates no
// definition of crd.projectcalico.org there, to which all of Calico's programs would turn.
func TestDefinitionsOfTheOtherGroup(t *testing.T) {
	kubeconfig := labtest.NewServerOf(t, groups.V3).Kubeconfig()
	out, err := say(t, "definitions", "-dir", filepath.Join(labtest.ChartDir(), "crds"), "-kubeconfig", kubeconfig)
	if err != nil || !errtest.Has(out, "projectcalico.org/v3 crd.projectcalico.org/v1") {
		t.Errorf("%v: %s", err, out)
	}
	cfg, err := kubernetes.LoadKubeconfig(kubeconfig)
	errtest.Must(t, err)
	store, err := kubernetes.New(cfg)
	errtest.Must(t, err)
	if served, err := store.Served(t.Context(), string(groups.V1)); err != nil || len(served) > 0 {
		t.Errorf("the API server has %v in %s (%v)", served, groups.V1, err)
	}
}
