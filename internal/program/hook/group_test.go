package hook

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// installation is the environment of the chart's hook: the definitions of both groups in one directory, and a real API
// server.
type installation struct {
	*testing.T
	dir, kubeconfig string
	store           *kubernetes.Store
}

func newInstallation(t *testing.T, s *labtest.Server) *installation {
	t.Helper()
	i := &installation{t, t.TempDir(), s.Kubeconfig(), nil}
	for _, g := range groups.All {
		errtest.Must(t, os.CopyFS(i.dir, os.DirFS(labtest.DefinitionsDir(g))))
	}
	cfg, err := kubernetes.LoadKubeconfig(i.kubeconfig)
	errtest.Must(t, err)
	cfg.Group = groups.Found("", func(ctx context.Context, wanted groups.Group) (groups.Group, error) {
		return i.store.FindGroup(ctx, wanted, "")
	})
	i.store, err = kubernetes.New(cfg)
	errtest.Must(t, err)
	return i
}

// run runs the hook as the chart does, for a group that the values name; auto is empty.
func (i *installation) run(group string) (string, error) {
	i.Helper()
	return say(i.T, "definitions", "-dir", i.dir, "-group", group, "-kubeconfig", i.kubeconfig)
}

// has runs the hook, and fails the test unless the API server then has all definitions of one group, and none of the
// other, and the hook has reported its work.
func (i *installation) has(asked string, want groups.Group, said string) {
	i.Helper()
	if out, err := i.run(asked); err != nil || !errtest.Has(out, string(want)+" "+said) {
		i.Errorf("-group %q: %v: %s", asked, err, out)
	}
	files, err := filepath.Glob(labtest.DefinitionsDir(want) + "/*.yaml")
	errtest.Must(i.T, err)
	for g, kinds := range map[groups.Group]int{want: len(files), want.Other(): 0} {
		served, err := i.store.Served(i.Context(), string(g))
		served = slices.DeleteFunc(served, func(kind string) bool { return strings.Contains(kind, "/") }) // subresources
		if err != nil || len(served) != kinds {
			i.Errorf("-group %q: the API server has %v in %s (%v), want %d kinds", asked, served, g, err, kinds)
		}
	}
}

// TestGroupOfACluster: a cluster gets the definitions of one group, and a hook that runs again writes nothing. The
// values' group is refused if the cluster has its objects in the other one. While a cluster has only definitions of
// projectcalico.org/v3, none of crd.projectcalico.org is created, as all of Calico's programs would use it.
func TestGroupOfACluster(t *testing.T) {
	for _, c := range []struct {
		name, asked string
		want        groups.Group
	}{
		{"auto", "", groups.V1},
		{"v1", "crd.projectcalico.org/v1", groups.V1},
		{"v3", "projectcalico.org/v3", groups.V3},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := newInstallation(t, labtest.NewBareServer(t))
			i.has(c.asked, c.want, "ippools created")
			i.has(c.asked, c.want, "22 of 22 definitions were up to date")
			i.has("", c.want, "22 of 22 definitions were up to date")
			both := i.dir
			i.dir = labtest.DefinitionsDir(c.want.Other())
			if out, err := i.run(""); !errtest.Names(err, string(c.want)) {
				t.Errorf("no definition of the group in the directory: %v: %s", err, out)
			}
			i.dir = both
			ready := true
			info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: &ready}}
			errtest.Must(t, i.store.Create(t.Context(), info))
			i.has(c.asked, c.want, "22 of 22 definitions were up to date")
			if out, err := i.run(string(c.want.Other())); !errtest.Names(err, "apiGroup "+string(groups.V1)+" "+string(groups.V3)+" auto") {
				t.Errorf("the other group was asked for: %v: %s", err, out)
			}
			i.has("", c.want, "22 of 22 definitions were up to date")
		})
	}
}
