package plugin_test

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

func (w *world) status(t testing.TB, edits ...func(map[string]any)) answer {
	t.Helper()
	edits = append([]func(map[string]any){set("cniVersion", "1.1.0")}, edits...)
	return w.host.call(t, call{plugin: "calico", command: "STATUS", path: "/opt/cni/bin", stdin: w.conf(t, edits...)})
}

// wantStatus fails the test unless STATUS returns the code and the words, and before its deadline unless the words name
// that; code 0 means success.
func (w *world) wantStatus(t testing.TB, code uint, words ...string) {
	t.Helper()
	a := w.status(t)
	if !strings.Contains(strings.Join(words, " "), pastDeadline) {
		a.undelayed(t)
	}
	w.noSecrets(t, a)
	if code == 0 {
		if a.ok(t); a.stdout != "" {
			t.Errorf("STATUS printed %q", a.stdout)
		}
		return
	}
	e := a.failure(t)
	if e.Code != code {
		t.Errorf("code %d, want %d: %s", e.Code, code, e.Error())
	}
	difftest.Contains(t, e.Error(), words...)
}

func TestStatus(t *testing.T) {
	t.Parallel()
	away := func(w *world) {
		w.proxy.setRule(func(string, http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) })
	}
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, w *world)
		code  uint
		words []string
	}{
		{"all is well, and no agent has written", func(*testing.T, *world) {}, 0, nil},
		{"all is well, and the agent says so", func(t *testing.T, w *world) { w.tellFacts(t, nil) }, 0, nil},
		{"the agent has never run", func(t *testing.T, w *world) { w.host.remove(t, nodenamePath) }, 50, []string{nodenamePath, "tortie-node"}},
		{"no kubeconfig", func(t *testing.T, w *world) { w.host.remove(t, kubeconfigPath) }, 50, []string{kubeconfigPath, "install"}},
		{"API server away", func(_ *testing.T, w *world) { away(w) }, 50, []string{"API server"}},
		{"API server away, and the agent has just seen it", func(t *testing.T, w *world) {
			w.tellFacts(t, nil)
			w.wantStatus(t, 0)
			away(w)
		}, 0, nil},
		{"API server away since the agent's last word", func(t *testing.T, w *world) {
			w.tellFacts(t, nil)
			w.wantStatus(t, 0)
			away(w)
			w.tellFacts(t, func(f *facts.Facts) { f.Written = time.Now().Add(-2 * facts.MaxAge) })
		}, 50, []string{"API server"}},
		{"API server silent", func(_ *testing.T, w *world) {
			w.proxy.setRule(func(_ string, _ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
		}, 50, []string{pastDeadline}},
		{"token refused", func(t *testing.T, w *world) { w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, "wrong")) }, 50,
			[]string{"token", "install"}},
		{"token refused, and the agent is well", func(t *testing.T, w *world) {
			w.tellFacts(t, nil)
			w.wantStatus(t, 0)
			w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, "wrong"))
		}, 50, []string{"token"}},
		{"no rights", func(t *testing.T, w *world) { w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, w.api.barred)) }, 50,
			[]string{"permissions"}},
		{"the agent is not ready", func(t *testing.T, w *world) {
			w.tellFacts(t, func(f *facts.Facts) { f.AgentReady = false })
		}, 50, []string{"tortie-node", "not ready"}},
		{"the agent starts again and is not ready yet", func(t *testing.T, w *world) {
			w.tellFacts(t, nil)
			w.wantStatus(t, 0)
			w.tellFacts(t, func(f *facts.Facts) { f.AgentReady = false })
		}, 0, nil},
		{"the agent started again long ago and is not ready", func(t *testing.T, w *world) {
			w.tellFacts(t, nil)
			w.wantStatus(t, 0)
			w.tellFacts(t, func(f *facts.Facts) { f.AgentReady = false })
			w.wantStatus(t, 0)
			w.lastAccess(t, 11*time.Minute)
		}, 50, []string{"tortie-node", "not ready"}},
		{"the agent restarts", func(t *testing.T, w *world) {
			w.tellFacts(t, func(f *facts.Facts) { f.Written = time.Now().Add(-5 * time.Minute) })
		}, 0, nil},
		{"the agent has gone", func(t *testing.T, w *world) {
			w.tellFacts(t, func(f *facts.Facts) { f.Written = time.Now().Add(-11 * time.Minute) })
		}, 51, []string{"tortie-node", "for 11m"}},
		{"the agent has gone, and the API server too", func(t *testing.T, w *world) {
			w.tellFacts(t, func(f *facts.Facts) { f.Written = time.Now().Add(-11 * time.Minute) })
			away(w)
		}, 50, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.newPod(t, "web").add(t).ok(t)
			tt.spoil(t, w)
			nothing := w.unchanged(t)
			w.wantStatus(t, tt.code, tt.words...)
			nothing()
		})
	}
}

// A silent server holds STATUS up until its own deadline, which is shorter than the time for a connection and has
// another text.
func TestStatusOfASilentAPIServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	silent := w.host.Listen(t)
	defer silent.Close()
	server := "https://" + silent.Addr().String()
	w.host.Write(t, kubeconfigPath, labtest.PluginKubeconfig(server, nil, w.api.token))
	w.wantStatus(t, 50, "no answer from the API server at "+server+": "+pastDeadline)
}

func TestStatusWithoutAPool(t *testing.T) {
	t.Parallel()
	w := newEmptyWorld(t)
	w.wantStatus(t, 50, "IPPool")
	w.tellFacts(t, nil)
	w.wantStatus(t, 50, "IPPool")
	w.createPool(t, w.cidr, `, namespaceSelector: "projectcalico.org/name == 'another'"`)
	w.wantStatus(t, 0) // for some pods
	other := newEmptyWorld(t)
	other.wantStatus(t, 50, "IPPool", "nodeSelector") // and not on this node
}

func TestStatusOfAnExhaustedPool(t *testing.T) {
	t.Parallel()
	w := newEmptyWorld(t)
	w.createPool(t, strings.Replace(w.cidr, "/16", "/30", 1), ", blockSize: 30")
	w.newPod(t, "web-0").add(t).ok(t)
	w.wantStatus(t, 0)
	for _, name := range []string{"web-1", "web-2", "web-3"} {
		w.newPod(t, name).add(t).ok(t)
	}
	w.wantStatus(t, 50, w.name, "no free address")
	// The agent knows from the kernel that the block is full.
	w.tellFacts(t, func(f *facts.Facts) { f.Affinities[0].Free = new(int) })
	w.wantStatus(t, 50, w.name, "no free address")
	w.pods[0].del(t).ok(t)
	w.wantStatus(t, 0)
}

// TestStatusIsCheap: containerd asks every 5 s on every node.
func TestStatusIsCheap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newPod(t, "web").add(t).ok(t)
	w.tellFacts(t, nil)
	w.proxy.take()
	w.wantStatus(t, 0)
	if got := w.proxy.take(); len(got) != 1 || got[0] != "calico GET clusterinformations" {
		t.Errorf("the first STATUS asked for %q, want whether the datastore is ready", got)
	}
	for range 3 {
		w.wantStatus(t, 0)
	}
	if got := w.proxy.take(); len(got) != 0 {
		t.Errorf("the next ones asked for %q, want nothing", got)
	}
	w.lastAccess(t, 2*time.Minute)
	w.wantStatus(t, 0)
	if got := w.proxy.take(); len(got) != 1 {
		t.Errorf("after two minutes STATUS asked for %q, want one request", got)
	}
	if log := w.host.Read(t, logPath); strings.Contains(log, "STATUS") {
		t.Errorf("the log is filled by STATUS: %s", log)
	}
}

// lastAccess makes it long ago that STATUS last asked the API server.
func (w *world) lastAccess(t testing.TB, ago time.Duration) {
	t.Helper()
	w.host.On(t, func() error {
		then := time.Now().Add(-ago)
		return errors.Join(os.Chtimes(statusPath, then, then),
			os.Chtimes(kubeconfigPath, then.Add(-time.Hour), then.Add(-time.Hour)))
	})
}

func TestStatusOfIPAM(t *testing.T) {
	t.Parallel()
	w := newEmptyWorld(t)
	c := call{plugin: "calico-ipam", command: "STATUS", path: "/opt/cni/bin", stdin: w.conf(t, set("cniVersion", "1.1.0"))}
	if e := w.host.call(t, c).failure(t); e.Code != 50 || !strings.Contains(e.Error(), "IPPool") {
		t.Errorf("without a pool: %+v", e)
	}
	w.createPool(t, w.cidr, "")
	w.host.call(t, c).ok(t)
}

// STATUS by libcni, as runtimes call it, asks another IPAM plugin too.
func TestStatusByLibcni(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cni, list, _ := libcniFor(t, w.newPod(t, "web"), "1.1.0")
	if err := cni.GetStatusNetworkList(t.Context(), list); err != nil {
		t.Error(err)
	}
	w.host.remove(t, nodenamePath)
	if err := cni.GetStatusNetworkList(t.Context(), list); err == nil || !strings.Contains(err.Error(), "tortie-node") {
		t.Errorf("STATUS: %v", err)
	}
}
