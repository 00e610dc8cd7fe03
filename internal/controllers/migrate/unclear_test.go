package migrate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// info reads the ClusterInformation of a group.
func (m *Mover) info(t *testing.T, in groups.Group) *object {
	t.Helper()
	_, infos, err := m.read(t.Context())
	errtest.Must(t, err)
	if infos[in] == nil {
		t.Fatalf("%s has no ClusterInformation", in)
	}
	return infos[in]
}

// setReady is a person who sets datastoreReady.
func setReady(t *testing.T, m *Mover, in groups.Group, ready bool) {
	t.Helper()
	o := m.info(t, in)
	errtest.Must(t, errors.Join(o.set(ready, markOf(o)), m.Stores[in].Update(t.Context(), o)))
}

// stranger creates a ClusterInformation as calicoctl does.
func stranger(t *testing.T, m *Mover, in groups.Group) *api.ClusterInformation {
	t.Helper()
	ready := true
	o := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: &ready}}
	errtest.Must(t, m.Stores[in].Create(t.Context(), o))
	return o
}

// nothing fails unless each command is refused with these words, and changes nothing.
func nothing(t *testing.T, m *Mover, when, words string) {
	t.Helper()
	before, infos, err := m.read(t.Context())
	errtest.Must(t, err)
	v1, v3 := look(t, m.Stores[groups.V1], groups.V1), look(t, m.Stores[groups.V3], groups.V3)
	for what, do := range map[string]func() error{
		"start --to v1": func() error { return m.Start(t.Context(), groups.V1) },
		"start --to v3": func() error { return m.Start(t.Context(), groups.V3) },
		"abort":         func() error { return m.Abort(t.Context()) },
		"finish":        func() error { return m.Finish(t.Context()) },
	} {
		if err := do(); !errtest.Names(err, words) {
			t.Errorf("%s, %s: %v, want an error that names %s", when, what, err, words)
		}
	}
	var text strings.Builder
	if err := m.Status(t.Context(), &text); err != nil || !errtest.Has(text.String(), words) {
		t.Errorf("%s, status: %v:\n%s", when, err, &text)
	}
	after, now, err := m.read(t.Context())
	errtest.Must(t, err)
	for in, o := range infos {
		if now[in] == nil || now[in].ResourceVersion != o.ResourceVersion {
			t.Errorf("%s: ClusterInformation of %s has changed: %+v, was %+v", when, in, after, before)
		}
	}
	same(t, when+", in v1", v1, look(t, m.Stores[groups.V1], groups.V1))
	same(t, when+", in v3", v3, look(t, m.Stores[groups.V3], groups.V3))
}

// answering has the agents of nodes one and two answer in a group.
func answering(t *testing.T, m *Mover, in groups.Group) *Mover {
	t.Helper()
	patient := *m
	patient.answer = time.Minute
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go answer(ctx, m.Stores[in], "one", "two")
	return &patient
}

// TestUnclear: a ClusterInformation that another program creates, changes or removes does not have the tool take one
// group for another. Above all, neither finish nor abort removes the group with the complete objects.
func TestUnclear(t *testing.T) {
	server := both(t)
	m := mover(t, server.Kubeconfig())
	v1, v3 := m.Stores[groups.V1], m.Stores[groups.V3]
	fill(t, v1)
	errtest.Must(t, m.Start(t.Context(), groups.V3))
	all := look(t, v3, groups.V3)
	agents(t, m)
	afterMove(t, m)
	same(t, "in v3", all, look(t, v3, groups.V3))
	errtest.Must(t, answering(t, m, groups.V3).Finish(t.Context()))

	m = answering(t, m, groups.V1)
	stopped(t, server, "create ipamhandles", 1, func(ctx context.Context, m *Mover) error { return m.Start(ctx, groups.V1) })
	says(t, m, copying, groups.Absent, groups.Locked)
	o := stranger(t, m, groups.V1)
	nothing(t, m, "v1 is ready while it is copied", "crd.projectcalico.org/v1 delete")
	same(t, "in v3", all, look(t, v3, groups.V3))
	errtest.Must(t, v1.Delete(t.Context(), o))
	abort := func(ctx context.Context, m *Mover) error { return m.Abort(ctx) }
	stopped(t, server, "update clusterinformations", 2, abort)
	says(t, m, copying, groups.Locked, groups.Locked)
	errtest.Must(t, m.Abort(t.Context()))
	says(t, m, moved, groups.Locked, groups.Ready)
	same(t, "in v1, after the abort", nil, look(t, v1, groups.V1))
	same(t, "in v3, after the abort", all, look(t, v3, groups.V3))

	stopped(t, server, "create ipamhandles", 1, func(ctx context.Context, m *Mover) error { return m.Start(ctx, groups.V1) })
	stopped(t, server, "update clusterinformations", 2, abort)
	errtest.Must(t, m.Start(t.Context(), groups.V1))
	says(t, m, moved, groups.Ready, groups.Locked)
	same(t, "back in v1", all, look(t, v1, groups.V1))
}

// stopped does something that is killed when it sends the nth request of a name.
func stopped(t *testing.T, server *labtest.Server, at string, n int32, do func(context.Context, *Mover) error) {
	t.Helper()
	proxy := labtest.NewProxyTo(t, server.Kubeconfig())
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	var seen atomic.Int32
	proxy.Fault(func(request string) (int, time.Duration) {
		if request != at || seen.Add(1) < n {
			return 0, 0
		}
		kill()
		return http.StatusServiceUnavailable, 0
	})
	if err := do(ctx, mover(t, proxy.Kubeconfig())); !errors.Is(err, context.Canceled) {
		t.Fatalf("killed at %s: %v", at, err)
	}
}

// removeAll removes the objects of a group, as with its definitions.
func removeAll(t *testing.T, m *Mover, in groups.Group) {
	t.Helper()
	_, err := m.clear(t.Context(), in, func(*object) bool { return true }, func() error { return nil })
	errtest.Must(t, err)
}

// TestLostAnswer: the request that opens the target was carried out, and its answer lost; later the target loses its
// ClusterInformation, or its objects.
func TestLostAnswer(t *testing.T) {
	pace := passPace
	passPace = wait.Backoff{First: time.Millisecond, Most: time.Millisecond}
	t.Cleanup(func() { passPace = pace })
	server := both(t)
	m := mover(t, server.Kubeconfig())
	v1, v3 := m.Stores[groups.V1], m.Stores[groups.V3]
	fill(t, v1)
	proxy := labtest.NewProxyTo(t, server.Kubeconfig())
	lossy, by := mover(t, proxy.Kubeconfig()), 0
	answer := func(request string) (int, time.Duration) {
		if request != "create clusterinformations" {
			return 0, 0
		}
		by++
		return labtest.Lost, 0
	}
	proxy.Fault(answer)
	errtest.Must(t, lossy.Start(t.Context(), groups.V3))
	says(t, m, moved, groups.Locked, groups.Ready)
	if by != 1 {
		t.Errorf("the target was opened %d times", by)
	}

	copied := look(t, v3, groups.V3)
	done := markOf(m.info(t, groups.V1))
	early := mark{To: done.To, ID: done.ID}
	errtest.Must(t, m.setInfo(t.Context(), groups.V1, false, done, early)) // as a release did that took it back
	errtest.Must(t, m.Start(t.Context(), groups.V3))
	if got := markOf(m.info(t, groups.V1)); got != done {
		t.Errorf("start has left the mark %+v, want %+v", got, done)
	}
	errtest.Must(t, v3.Delete(t.Context(), m.info(t, groups.V3)))
	proxy.Fault(func(request string) (int, time.Duration) {
		if request == "create clusterinformations" {
			return http.StatusInternalServerError, 0
		}
		return 0, 0
	})
	if err := lossy.Start(t.Context(), groups.V3); !errtest.Names(err, "ClusterInformation projectcalico.org/v3 start") {
		t.Errorf("an API server that refuses for another reason each time: %v", err)
	}
	says(t, m, switching, groups.Locked, groups.Absent)

	removeAll(t, m, groups.V3)
	all := look(t, v1, groups.V1)
	if err := m.Start(t.Context(), groups.V3); !errtest.Names(err, "projectcalico.org/v3 ippools crd.projectcalico.org/v1 "+groups.Moving) {
		t.Errorf("start, when the target has lost its objects: %v", err)
	}
	says(t, m, switching, groups.Locked, groups.Absent)
	errtest.Must(t, m.putInfo(t.Context(), m.info(t, groups.V1), groups.V3, true, done))
	says(t, m, moved, groups.Locked, groups.Ready)
	for _, node := range []string{"one", "two"} {
		ofTortie(t, m, "kube-system", node, "node", fmt.Sprintf(`{"nodeName":%q,"containers":[{"name":"node","image":"tortie"}]}`, node))
	}
	if err := answering(t, m, groups.V3).Finish(t.Context()); !errtest.Names(err, "projectcalico.org/v3 ippools") {
		t.Errorf("finish, when the target has lost its objects: %v", err)
	}
	same(t, "after finish", all, look(t, v1, groups.V1))
	errtest.Must(t, v3.Delete(t.Context(), m.info(t, groups.V3)))
	errtest.Must(t, m.setInfo(t.Context(), groups.V1, false, done, early)) // as the error says
	errtest.Must(t, m.Start(t.Context(), groups.V3))
	says(t, m, moved, groups.Locked, groups.Ready)
	same(t, "copied again", copied, look(t, v3, groups.V3))
}

// TestAbortBesideAStart: a start that has lost its Lease without noticing, at any write, does not open a target that an
// abort empties. What it writes late the next abort removes.
func TestAbortBesideAStart(t *testing.T) {
	pace := passPace
	passPace = wait.Backoff{First: time.Millisecond, Most: time.Millisecond}
	t.Cleanup(func() { passPace = pace })
	server := both(t)
	m := mover(t, server.Kubeconfig())
	v1, v3 := m.Stores[groups.V1], m.Stores[groups.V3]
	fill(t, v1)
	before := look(t, v1, groups.V1)
	for at, n := range map[string]int32{"create ippools": 1, "create ipamhandles": 1, "update clusterinformations": 2} {
		wake := asleep(t, server, at, n, func(m *Mover) error { return m.Start(t.Context(), groups.V3) })
		errtest.Must(t, m.Abort(t.Context()))
		says(t, m, idle, groups.Ready, groups.Absent)
		if err := wake(); !errtest.Names(err, "another program") {
			t.Errorf("a start that slept at %s: %v", at, err)
		}
		says(t, m, idle, groups.Ready, groups.Absent)
		same(t, "after the abort beside "+at, before, look(t, v1, groups.V1))
		late := len(look(t, v3, groups.V3))
		if err := m.Abort(t.Context()); (err == nil) != (late > 0) {
			t.Errorf("abort of %d objects that came late: %v", late, err)
		}
		same(t, "what came late", nil, look(t, v3, groups.V3))
	}

	stopped(t, server, "create ipamhandles", 1, func(ctx context.Context, m *Mover) error { return m.Start(ctx, groups.V3) })
	wake := asleep(t, server, "list ipamhandles", 1, func(m *Mover) error { return m.Abort(t.Context()) })
	errtest.Must(t, m.Start(t.Context(), groups.V3))
	all := look(t, v3, groups.V3)
	if err := wake(); !errtest.Names(err, "another program moved") {
		t.Errorf("an abort that slept: %v", err)
	}
	says(t, m, moved, groups.Locked, groups.Ready)
	same(t, "in v3", all, look(t, v3, groups.V3))
}

// asleep begins to do something that sleeps at its nth request of a name, and returns once it does. The returned
// function wakes it up, and returns its error.
func asleep(t *testing.T, server *labtest.Server, at string, n int32, do func(*Mover) error) (wake func() error) {
	t.Helper()
	proxy := labtest.NewProxyTo(t, server.Kubeconfig())
	came, released, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var seen atomic.Int32
	proxy.Fault(func(request string) (int, time.Duration) {
		if request == at && seen.Add(1) == n {
			close(came)
			<-released
		}
		return 0, 0
	})
	m := mover(t, proxy.Kubeconfig())
	go func() { ended <- do(m) }()
	select {
	case <-came:
	case err := <-ended:
		t.Fatalf("it has ended before request %d of %s: %v", n, at, err)
	}
	return func() error {
		close(released)
		return <-ended
	}
}

// afterMove has what may happen to the ClusterInformation of a cluster that was moved to v3.
func afterMove(t *testing.T, m *Mover) {
	t.Helper()
	v1, v3 := m.Stores[groups.V1], m.Stores[groups.V3]
	errtest.Must(t, v3.Delete(t.Context(), m.info(t, groups.V3)))
	says(t, m, switching, groups.Locked, groups.Absent)
	if err := m.Abort(t.Context()); !errtest.Names(err, "projectcalico.org/v3 start v3") {
		t.Errorf("abort, when v3 has lost its ClusterInformation: %v", err)
	}
	if err := m.Finish(t.Context()); !errtest.Names(err, "switching") {
		t.Errorf("finish, when v3 has lost its ClusterInformation: %v", err)
	}
	o := stranger(t, m, groups.V3)
	text := m.info(t, groups.V1).Annotations[groups.Moving]
	nothing(t, m, "v3's was created anew", "projectcalico.org/v3 "+groups.Moving+" "+text)
	errtest.Must(t, v3.Delete(t.Context(), o))
	errtest.Must(t, m.Start(t.Context(), groups.V3))
	says(t, m, moved, groups.Locked, groups.Ready)

	setReady(t, m, groups.V1, true)
	nothing(t, m, "v1 is unlocked", "crd.projectcalico.org/v1 false")
	setReady(t, m, groups.V3, false)
	nothing(t, answering(t, m, groups.V1), "v1 is unlocked and v3 locked", "crd.projectcalico.org/v1 false")
	setReady(t, m, groups.V3, true)
	errtest.Must(t, v1.Delete(t.Context(), m.info(t, groups.V1)))
	stranger(t, m, groups.V1)
	nothing(t, m, "v1's was created anew", "crd.projectcalico.org/v1 false")
	setReady(t, m, groups.V1, false)
	says(t, m, moved, groups.Locked, groups.Ready)
}

// TestFinishWithoutMarks: without a tortie.net/migrating only what Calico's migration has noted shows that
// projectcalico.org/v3 has all objects.
func TestFinishWithoutMarks(t *testing.T) {
	m := mover(t, both(t).Kubeconfig())
	stranger(t, m, groups.V1)
	o := stranger(t, m, groups.V3)
	for _, to := range groups.All {
		if err := m.Start(t.Context(), to); !errtest.Names(err, "datastoreReady") {
			t.Errorf("start to %s with two ready groups: %v", to, err)
		}
	}
	setReady(t, m, groups.V1, false)
	nothing(t, m, "v1 is locked, and v3 was ready before", "projectcalico.org/v3 clusterinformations.projectcalico.org used=true")
	o.Annotations = map[string]string{calicoMigration + "migrated-by": "a"}
	errtest.Must(t, m.Stores[groups.V3].Update(t.Context(), o))
	if err := m.Finish(t.Context()); !errtest.Names(err, agentLabels) {
		t.Errorf("after Calico's migration: %v, want only agents to be missing", err)
	}
	setReady(t, m, groups.V1, true)
	setReady(t, m, groups.V3, false)
	if err := m.Finish(t.Context()); !errtest.Names(err, fmt.Sprint(idle)) {
		t.Errorf("with v1 ready: %v", err)
	}
}
