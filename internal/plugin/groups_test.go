package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// inGroups returns two views of the cluster of this test binary: one that keeps Calico's objects in a group, and the
// same in the other group, where no ClusterInformation is. At the end of the test, the only one is again that in
// labtest.Group. The test must not be parallel.
func inGroups(t testing.TB, in groups.Group) (here, there *cluster) {
	t.Helper()
	home := theAPI(t)
	other := *home
	other.group = home.group.Other()
	t.Cleanup(func() {
		if err := errors.Join(other.setAbsent(context.Background()), home.setReady(context.Background(), true)); err != nil {
			t.Errorf("restore ClusterInformation: %v", err)
		}
	})
	here, there = home, &other
	if in != home.group {
		here, there = there, here
	}
	errtest.Must(t, errors.Join(there.setAbsent(t.Context()), here.setReady(t.Context(), true)))
	return here, there
}

// newWorldIn makes a world, as inGroups does with the cluster. It has a pool in each group; elsewhere is the same world
// with the other group's objects.
func newWorldIn(t testing.TB, in groups.Group) (w, elsewhere *world) {
	t.Helper()
	here, there := inGroups(t, in)
	w = newEmptyWorldOn(t, here)
	other := *w
	other.api = there
	t.Cleanup(func() { there.forgetNode(t, w.name) })
	for _, v := range []*world{w, &other} {
		v.createPool(t, v.cidr, "")
	}
	return w, &other
}

// awaitFence waits until the fence lets the world's node write in its group: until the API server's admission has
// observed that the group is not locked, and in projectcalico.org/v3, that the other one is not ready.
func (w *world) awaitFence(t testing.TB) { w.awaitLock(t, false) }

// awaitLock waits until the fence refuses the world's node addresses in its group, or until it does not.
func (w *world) awaitLock(t testing.TB, locked bool) {
	t.Helper()
	client, err := dynamic.NewForConfig(labtest.OnNode(t, labtest.RESTConfig(t), "tortie-cni", w.name))
	errtest.Must(t, err)
	handle := manifest(t, fmt.Sprintf(`{apiVersion: %s, kind: IPAMHandle, metadata: {name: probe}, spec: {handleID: probe, block: {}}}`,
		w.api.group))
	kind := client.Resource(labtest.KindIn(w.api.group, ofCalicos["IPAMHandle"]))
	waittest.Until(t, time.Minute, fmt.Sprintf("the fence refuses addresses in %s: %v", w.api.group, locked), func() bool {
		_, err := kind.Create(t.Context(), handle, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return (err != nil && strings.Contains(err.Error(), "tortie-fence-groups")) == locked // another fence may refuse a handle like this
	})
}

// wantPodsIn fails the test unless the addresses of a number of pods are taken in the world's group.
func (w *world) wantPodsIn(t testing.TB, n int) {
	t.Helper()
	if got := w.allocations(t); len(got) != n {
		t.Errorf("%d addresses are taken in %s, want %d: %v", len(got), w.api.group, n, got)
	}
}

// wantOnlyReads fails the test if one of the requests since the last take writes.
func (p *proxy) wantOnlyReads(t testing.TB) {
	t.Helper()
	for _, request := range p.take() {
		if verb := strings.Fields(request)[1]; verb != "GET" && verb != "LIST" {
			t.Errorf("it has sent %s", request)
		}
	}
}

// TestGroupMoves has a migration, and the way back from one, between two pods of a node without an agent: the group
// noted on the node no longer counts. No plugin writes in either, until the agent has noted the other.
func TestGroupMoves(t *testing.T) {
	for _, from := range groups.All {
		for what, leave := range map[string]func(context.Context, *cluster) error{
			"locked":  func(ctx context.Context, c *cluster) error { return c.setReady(ctx, false) },
			"deleted": func(ctx context.Context, c *cluster) error { return c.setAbsent(ctx) },
		} {
			t.Run(path.Base(string(from))+" "+what, func(t *testing.T) {
				w, next := newWorldIn(t, from)
				before := w.newPod(t, "before")
				before.add(t).ok(t)
				w.wantPodsIn(t, 1)
				before.del(t).ok(t)
				errtest.Must(t, errors.Join(leave(t.Context(), w.api), next.api.setReady(t.Context(), true)))

				s := w.newPod(t, "web")
				same, sameThere := w.unchanged(t), next.unchanged(t)
				w.proxy.take()
				for range 2 {
					w.wantFailure(t, s.add(t), types.ErrTryAgainLater, "now in another API group", string(next.api.group))
				}
				w.proxy.wantOnlyReads(t)
				same()
				sameThere()

				next.awaitFence(t)
				moving := func(yes bool) func(*facts.Facts) {
					return func(f *facts.Facts) { f.DatastoreReady, f.Moving = !yes, yes }
				}
				next.tellFacts(t, moving(true))
				w.wantFailure(t, s.add(t), types.ErrTryAgainLater, "has not yet made sure", string(next.api.group))
				w.host.Write(t, statusPath, "")
				w.lastAccess(t, time.Minute)
				w.wantStatus(t, 0)
				w.lastAccess(t, 11*time.Minute)
				w.wantStatus(t, 50, "has not yet made sure")
				sameThere()
				w.host.Write(t, facts.GroupFile, string(next.api.group)+"\n")
				next.tellFacts(t, moving(false))
				s.check(t, s.add(t).ok(t)).ok(t)
				w.wantPodsIn(t, 0)
				next.wantPodsIn(t, 1)
				s.del(t).ok(t)
				next.wantPodsIn(t, 0)
			})
		}
	}
}

// TestGroupIsSet sets the group by each of the two settings, while a plugin's note and the agent's facts name the other
// group. The setting is obeyed, and so is the lock of that group, which the facts do not have.
func TestGroupIsSet(t *testing.T) {
	for _, in := range groups.All {
		for setting, exec := range map[string]func(*testing.T, *sandbox, string) answer{
			"calico_api_group": func(t *testing.T, s *sandbox, verb string) answer {
				return s.host.call(t, s.call(t, verb, set("calico_api_group", string(in))))
			},
			"CALICO_API_GROUP": func(t *testing.T, s *sandbox, verb string) answer {
				c := s.call(t, verb)
				return s.host.exec(t, "/opt/cni/bin/"+c.plugin, append(c.env(), "CALICO_API_GROUP="+string(in)), c.stdin)
			},
		} {
			t.Run(fmt.Sprintf("%s by %s", path.Base(string(in)), setting), func(t *testing.T) { testGroupIsSet(t, in, exec) })
		}
	}
}

func testGroupIsSet(t *testing.T, in groups.Group, exec func(_ *testing.T, _ *sandbox, verb string) answer) {
	w, other := newWorldIn(t, in)
	// Of two groups that are ready, the fence lets nodes write in crd.projectcalico.org/v1 only.
	errtest.Must(t, other.api.setReady(t.Context(), in == groups.V1))
	w.host.Write(t, facts.GroupFile, string(other.api.group)+"\n")
	for i, tell := range []func(){func() {}, func() { other.tellFacts(t, nil) }} {
		tell()
		s := w.newPod(t, fmt.Sprintf("web-%d", i))
		exec(t, s, "ADD").ok(t)
		w.wantPodsIn(t, 1)
		other.wantPodsIn(t, 0)
		exec(t, s, "DEL").ok(t)
		w.wantPodsIn(t, 0)
	}
	errtest.Must(t, w.api.setReady(t.Context(), false))
	for i, tell := range []func(){func() { w.host.remove(t, facts.DefaultFile) }, func() { other.tellFacts(t, nil) }} {
		tell()
		s := w.newPod(t, fmt.Sprintf("locked-%d", i))
		same, sameThere := w.unchanged(t), other.unchanged(t)
		w.proxy.take()
		w.wantFailure(t, exec(t, s, "ADD"), types.ErrTryAgainLater, "datastoreReady")
		w.proxy.wantOnlyReads(t)
		same()
		sameThere()
	}
}

// TestLockedBehindFacts has facts of before the lock, which the plugin trusts for half a minute. The API server refuses
// its writes, and ADD reports that; the container can go, and its address is released after the lock.
func TestLockedBehindFacts(t *testing.T) {
	for _, in := range groups.All {
		t.Run(path.Base(string(in)), func(t *testing.T) {
			w, _ := newWorldIn(t, in)
			before, s := w.newPod(t, "before"), w.newPod(t, "web")
			before.add(t).ok(t)
			errtest.Must(t, w.api.setReady(t.Context(), false))
			w.awaitLock(t, true)
			same := w.unchanged(t)
			w.tellFacts(t, nil)
			w.wantFailure(t, s.add(t), types.ErrTryAgainLater, "the datastore is locked", string(in))
			same()
			w.tellFacts(t, nil)
			before.del(t).ok(t)
			before.wantJournal(t, "the datastore is locked")
			w.wantPodsIn(t, 1)

			errtest.Must(t, w.api.setReady(t.Context(), true))
			w.awaitFence(t)
			w.host.remove(t, facts.DefaultFile) // where an agent runs, it does what DELs have left
			s.check(t, s.add(t).ok(t)).ok(t)
			s.del(t).ok(t)
			w.wantPodsIn(t, 0)
		})
	}
}

// TestGroupBehindCalicosServer has Calico's own API server in projectcalico.org/v3: it has no blocks, and shows the lock
// of crd.projectcalico.org/v1, which ends between a plugin's two looks. The plugin stays in crd.projectcalico.org/v1.
func TestGroupBehindCalicosServer(t *testing.T) {
	w, shown := newWorldIn(t, groups.V1)
	errtest.Must(t, errors.Join(w.api.setReady(t.Context(), false), shown.api.setReady(t.Context(), true)))
	w.proxy.setRule(func(_ string, answer http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path != "/apis/"+string(groups.V3) {
			next.ServeHTTP(answer, r)
			return
		}
		answer.Header().Set("Content-Type", "application/json")
		_, _ = answer.Write([]byte(`{"resources":[{"name":"clusterinformations"},{"name":"blockaffinities"}]}`))
	})
	s := w.newPod(t, "web")
	w.wantFailure(t, s.add(t), types.ErrTryAgainLater, "datastoreReady")
	if got := w.host.Read(t, facts.GroupFile); got != string(groups.V1)+"\n" {
		t.Errorf("noted for the next plugin: %q", got)
	}
	errtest.Must(t, errors.Join(w.api.setReady(t.Context(), true), shown.api.setAbsent(t.Context())))
	w.awaitFence(t)
	s.check(t, s.add(t).ok(t)).ok(t)
	w.wantPodsIn(t, 1)
	shown.wantPodsIn(t, 0)
	s.del(t).ok(t)
	w.wantPodsIn(t, 0)
}
