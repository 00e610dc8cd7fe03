package plugin_test

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/plugin/journal"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// journal returns the entries on the world's node.
func (w *world) journal(t testing.TB) (entries []journal.Entry) {
	t.Helper()
	w.host.On(t, func() error {
		return journal.DefaultDir.Each(t.Context(), func(e journal.Entry) error {
			entries = append(entries, e)
			return journal.ErrKeep
		})
	})
	return entries
}

func (w *world) wantEmptyJournal(t testing.TB) {
	t.Helper()
	if entries := w.journal(t); len(entries) > 0 {
		t.Errorf("left for later: %+v", entries)
	}
}

// wantJournal fails the test unless the journal has exactly this sandbox, with these words in the reason.
func (s *sandbox) wantJournal(t testing.TB, words ...string) {
	t.Helper()
	entries := s.journal(t)
	if len(entries) != 1 {
		t.Fatalf("%d entries in the journal, want 1: %+v", len(entries), entries)
	}
	got := entries[0]
	difftest.Contains(t, got.Reason, words...)
	if age := time.Since(got.Time); age < 0 || age > time.Minute {
		t.Errorf("the entry is of %v", got.Time)
	}
	want := journal.Entry{
		Handle: s.network() + "." + s.container, Datastore: "kubernetes", Network: s.network(), Namespace: s.name, Pod: s.pod,
		ContainerID: s.container, IfName: "eth0", Time: got.Time, Reason: got.Reason,
	}
	difftest.Want(t, "entry", want, got)
}

// wantUnwired fails the test if the node has a link or route of the sandbox, or the sandbox its interface.
func (s *sandbox) wantUnwired(t testing.TB) {
	t.Helper()
	if _, err := s.host.Conn.LinkByName(s.hostVeth()); !netlinkx.IsNotExist(err) {
		t.Errorf("the node's end is still there: %v", err)
	}
	if _, err := s.ns.Conn.LinkByName("eth0"); !netlinkx.IsNotExist(err) {
		t.Errorf("the pod's end is still there: %v", err)
	}
}

// However the API server is away, a container can go after a few tries; its addresses are free once the API server is
// back.
func TestDelWithoutTheAPIServer(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, w *world) {
		w.host.Write(t, kubeconfigPath, labtest.PluginKubeconfig("https://127.0.0.1:1", nil, w.api.token))
	}
	for name, tt := range map[string]struct {
		away   func(t *testing.T, w *world)
		reason string
	}{
		"refuses connections": {refused, "connection refused"},
		"accepts and is silent": {func(t *testing.T, w *world) {
			silent := w.host.Listen(t)
			t.Cleanup(func() { silent.Close() })
			w.host.Write(t, kubeconfigPath, labtest.PluginKubeconfig("https://"+silent.Addr().String(), nil, w.api.token))
		}, "was silent for"},
		"does not know the token": {func(t *testing.T, w *world) {
			w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, wrongToken))
		}, "HTTP 401"},
		"forbids to clear the annotations": {func(_ *testing.T, w *world) {
			w.proxy.setRule(refuse(patchPod, http.StatusForbidden))
		}, "HTTP 403"},
		"forbids to release": {func(_ *testing.T, w *world) {
			w.proxy.setRule(refuse("calico PUT ipamblocks", http.StatusForbidden))
		}, "HTTP 403"},
		"dies before the release": {func(_ *testing.T, w *world) {
			w.proxy.setRule(dieAt("calico PUT ipamblocks"))
		}, "no answer"},
		"dies before the end of the release": {func(_ *testing.T, w *world) {
			w.proxy.setRule(dieAt("calico DELETE ipamhandles"))
		}, "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s, other := w.newPod(t, "web"), w.newPod(t, "other")
			nothing := w.unchanged(t)
			s.add(t).ok(t)
			tt.away(t, w)
			for range 2 {
				w.proxy.take()
				a := s.del(t).ok(t)
				w.proxy.wantFewTries(t)
				w.noSecrets(t, a)
				s.wantUnwired(t)
				s.wantJournal(t, tt.reason)
				if name != "accepts and is silent" {
					a.undelayed(t)
				}
			}
			w.proxy.setRule(nil)
			w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, w.api.token))
			other.del(t).ok(t) // of a container that never was
			w.wantEmptyJournal(t)
			nothing()
			s.wantAnnotations(t, "", s.container)
		})
	}
}

// While the agent runs, which facts that are not old show, DELs do nothing for others.
func TestTheAgentFinishesWhatIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, other := w.newPod(t, "web"), w.newPod(t, "other")
	a := address(t, s.add(t).result(t))
	w.proxy.setRule(refuse("calico PUT ipamblocks", http.StatusForbidden))
	s.del(t).ok(t)
	w.proxy.setRule(nil)
	w.tellFacts(t, nil)
	other.del(t).ok(t)
	s.wantJournal(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{a: s})
}

// A runtime that repeats ADD for a container after a DEL with a pending release keeps the address: the release is
// withdrawn.
func TestAddTakesBackWhatIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, other := w.newPod(t, "web"), w.newPod(t, "other")
	a := address(t, s.add(t).result(t))
	w.proxy.setRule(refuse("calico PUT ipamblocks", http.StatusForbidden))
	s.del(t).ok(t)
	s.wantJournal(t)
	w.proxy.setRule(nil)
	again := s.add(t)
	if got := address(t, again.result(t)); got != a {
		t.Errorf("the container got %s, and holds %s still", got, a)
	}
	w.wantEmptyJournal(t)
	other.del(t).ok(t)
	s.check(t, again).ok(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{a: s})
	s.wantAnnotations(t, a.String(), s.container)
}

// If the journal cannot be written, DEL fails, so that the runtime repeats it.
func TestDelWithNeitherAPIServerNorJournal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	s.add(t).ok(t)
	w.host.Write(t, "/var/lib/calico/tortie", "a file where the directory should be")
	w.proxy.setRule(refuse(patchPod, http.StatusForbidden))
	w.wantFailure(t, s.del(t), codeUnauthorized, "HTTP 403", "/var/lib/calico/tortie")
	s.wantUnwired(t)
	w.host.remove(t, "/var/lib/calico/tortie")
	w.proxy.setRule(nil)
	s.del(t).ok(t)
	w.wantHeld(t, nil)
}
