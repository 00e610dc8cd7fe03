package plugin_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

const (
	oldNetwork = "k8s-pod-network"
	oldDir     = "/var/lib/cni/networks/" + oldNetwork
	oldBin     = "/opt/host/cni/bin"

	agentKubeconfig = "/etc/agent-kubeconfig"
)

// upgradeWorld is a world that still uses host-local. Its tests are not parallel: they lock what all worlds share.
func upgradeWorld(t *testing.T) *world {
	t.Helper()
	w := newEmptyWorld(t)
	w.createPool(t, w.cidr, ", ipipMode: Always")
	w.setPodCIDRs(t, w.name, w.podCIDR())
	w.host.Write(t, agentKubeconfig, kubeconfig(w.proxy, labtest.OnNode(t, labtest.RESTConfig(t), "tortie-node", w.name).BearerToken))
	w.host.Write(t, oldBin+"/calico", "old")
	w.host.Write(t, oldBin+"/host-local", "old")
	w.host.Write(t, oldBin+"/loopback", "stays")
	return w
}

// podCIDR is the node's part of the world's pool.
func (w *world) podCIDR() string { return strings.Replace(w.cidr, "0.0/16", "3.0/24", 1) }

// withHostLocal has the old plugin connect a pod.
func (w *world) withHostLocal(t *testing.T, pod string) (*sandbox, netip.Addr) {
	t.Helper()
	s := w.newPod(t, pod)
	res := s.addWith(t, "name", oldNetwork, "ipam", hostLocal(map[string]any{"subnet": "usePodCidr"})).result(t)
	return s, address(t, res)
}

// upgrade executes calico-ipam -upgrade as its container does.
func (w *world) upgrade(t *testing.T) answer {
	t.Helper()
	return w.host.exec(t, "/opt/cni/bin/calico-ipam", w.upgradeEnv(), "", "-upgrade")
}

func (w *world) upgradeEnv() []string {
	return []string{"KUBERNETES_NODE_NAME=" + w.name, "KUBECONFIG=" + agentKubeconfig, "HOST_CNI_BIN_DIR=" + oldBin}
}

// ready returns the datastoreReady that all plugins obey, and the nodes that have locked it.
func (w *world) ready(t *testing.T) (ready bool, by string) {
	t.Helper()
	info := w.api.get(t, "ClusterInformation", "", "default")
	ready, _, _ = unstructured.NestedBool(info.Object, "spec", "datastoreReady")
	return ready, info.GetAnnotations()["tortie.net/upgrading-nodes"]
}

// wantMigrated fails the test unless exactly these sandboxes hold these addresses, beside the node's tunnel, and
// nothing of host-local is left.
func (w *world) wantMigrated(t *testing.T, want map[netip.Addr]*sandbox) {
	t.Helper()
	tunnel := netip.MustParsePrefix(w.podCIDR()).Addr().Next()
	handles := map[netip.Addr]string{tunnel: names.TunnelHandle(w.name)}
	for a, s := range want {
		handles[a] = oldNetwork + "." + s.container
	}
	difftest.Want(t, "addresses held", handles, w.allocations(t))
	w.host.On(t, func() error {
		if _, err := os.Stat(oldDir); !os.IsNotExist(err) {
			return fmt.Errorf("%s is still there (%v)", oldDir, err)
		}
		return nil
	})
	if got := w.api.get(t, "Node", "", w.name).GetAnnotations()[api.AnnotationIPv4TunnelAddr]; got != tunnel.String() {
		t.Errorf("tunnel address %q, want %s", got, tunnel)
	}
	if ready, by := w.ready(t); !ready || by != "" {
		t.Errorf("the datastore is ready: %v, locked by %q", ready, by)
	}
}

func TestUpgrade(t *testing.T) {
	w := upgradeWorld(t)
	a, addrA := w.withHostLocal(t, "a")
	b, addrB := w.withHostLocal(t, "b")
	// Leftovers: a pod that is gone, and one that has ended and whose address another pod has now.
	gone, addrGone := w.withHostLocal(t, "gone")
	w.api.delete(t, "Pod", w.name, "gone")
	w.age(t, oldDir+"/"+addrGone.String())
	// The old Calico did not write the container's ID on the pod, but the kubelet writes the address.
	w.annotatePod(t, "b", api.AnnotationContainerID, "")
	w.patchPodStatus(t, "b", fmt.Sprintf(`{"status":{"phase":"Running","podIP":"%[1]s","podIPs":[{"ip":"%[1]s"}]}}`, addrB))

	done := w.upgrade(t).ok(t)
	w.wantMigrated(t, map[netip.Addr]*sandbox{addrA: a, addrB: b})
	if got := w.host.list(t, oldBin); !slices.Equal(got, []string{"loopback"}) {
		t.Errorf("programs left: %v", got)
	}
	if attrs := w.noted(t, addrA); attrs["pod"] != "a" || attrs["namespace"] != w.name || attrs["node"] != w.name || attrs["timestamp"] == "" {
		t.Errorf("attributes %v", attrs)
	}
	if !strings.Contains(done.stderr, "dropped") || !strings.Contains(done.stderr, gone.container) {
		t.Errorf("the leftover is not mentioned: %s", done.stderr)
	}

	// Again there is nothing to do, and nothing is asked for.
	w.proxy.take()
	w.upgrade(t).ok(t)
	if seen := w.proxy.take(); len(seen) != 0 {
		t.Errorf("the second time: %v", seen)
	}
	// From now on the pods are calico-ipam's.
	c := a.callWith(t, "name", oldNetwork)
	c.command = "DEL"
	w.host.call(t, c).ok(t)
	if _, held := w.allocations(t)[addrA]; held {
		t.Error("DEL by calico-ipam did not free the address")
	}
}

// age makes a file older than an ADD can be.
func (w *world) age(t *testing.T, path string) {
	t.Helper()
	w.host.On(t, func() error { return os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)) })
}

// TestUpgradeKilled kills the migration at each of its writes, before and after it lands. Nothing is forgotten then,
// and the next migration completes it.
func TestUpgradeKilled(t *testing.T) {
	labtest.API(t)
	for n := 1; ; n++ {
		killed := false
		for _, landed := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, landed %v", n, landed), func(t *testing.T) {
				killed = upgradeKilled(t, n, landed) || killed
			})
		}
		if !killed {
			if n < 6 {
				t.Errorf("only %d writes were seen", n-1)
			}
			return
		}
	}
}

// upgradeKilled returns false if a migration has not so many writes.
func upgradeKilled(t *testing.T, n int, landed bool) bool {
	w := upgradeWorld(t)
	w.host.On(t, func() error { return os.RemoveAll(oldBin) }) // without programs to retire it does not wait for any
	a, addr := w.withHostLocal(t, "a")
	started := make(chan *process, 1)
	w.proxy.setRule(killAt(started, n, landed))
	p := w.host.start(t, "/opt/cni/bin/calico-ipam", w.upgradeEnv(), "-upgrade")
	started <- p
	state := p.wait()
	w.proxy.setRule(nil)
	if state.ExitCode() != -1 && !state.Success() {
		t.Errorf("it was not killed, but failed: %s", p.out.String())
	}
	holder := w.allocations(t)[addr]
	if file := w.host.Read(t, oldDir+"/"+addr.String()); file == "" && holder != oldNetwork+"."+a.container {
		t.Errorf("nobody knows any more who has %s; IPAM says %q", addr, holder)
	}
	w.upgrade(t).ok(t)
	w.wantMigrated(t, map[netip.Addr]*sandbox{addr: a})
	return !state.Success()
}

// killAt kills a process when it sends its n-th write: before the API server gets it, or once it has landed.
func killAt(started <-chan *process, n int, landed bool) rule {
	var writes atomic.Int32
	return func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodGet || int(writes.Add(1)) != n {
			next.ServeHTTP(w, r)
			return
		}
		if landed {
			next.ServeHTTP(httptest.NewRecorder(), r)
		}
		p := <-started
		_ = p.cmd.Process.Kill()
		<-p.done
		panic(http.ErrAbortHandler)
	}
}

// process is a program that runs on a node beside the test.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	out  logtest.Buffer // stderr
}

func (h *host) start(t *testing.T, program string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = env, &p.out
	errtest.Must(t, h.Try(p.cmd.Start))
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.end)
	return p
}

func (p *process) wait() *os.ProcessState {
	<-p.done
	return p.cmd.ProcessState
}

func (p *process) end() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// patchPodStatus changes what the kubelet reports of a pod.
func (w *world) patchPodStatus(t *testing.T, pod, patch string) {
	t.Helper()
	_, err := w.api.of("Pod", w.name).Patch(t.Context(), pod, apitypes.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	errtest.Must(t, err)
}

// An operator's lock is waited for, and not opened.
func TestUpgradeWaitsForTheOperator(t *testing.T) {
	w := upgradeWorld(t)
	a, addrA := w.withHostLocal(t, "a")
	errtest.Must(t, w.api.setReady(context.Background(), false))
	t.Cleanup(func() { _ = w.api.setReady(context.Background(), true) })
	p := w.host.start(t, "/opt/cni/bin/calico-ipam", w.upgradeEnv(), "-upgrade")
	waittest.Until(t, time.Minute, "it waits", func() bool { return strings.Contains(p.out.String(), "has locked it") })
	if ready, by := w.ready(t); ready || by != "" {
		t.Errorf("the lock of the operator was changed: %v %q", ready, by)
	}
	errtest.Must(t, w.api.setReady(context.Background(), true))
	if state := p.wait(); !state.Success() {
		t.Errorf("%v: %s", state, p.out.String())
	}
	w.wantMigrated(t, map[netip.Addr]*sandbox{addrA: a})
}

// An address of an ADD that may not be over, and one that no pool has, are not lost, and the cluster does not stay
// locked.
func TestUpgradeOfDoubtfulAddresses(t *testing.T) {
	w := upgradeWorld(t)
	a, addrA := w.withHostLocal(t, "a")
	w.host.Write(t, oldDir+"/"+w.fixed("3.77"), "0123456789abcdef\r\neth0")
	p := w.host.start(t, "/opt/cni/bin/calico-ipam", w.upgradeEnv(), "-upgrade")
	waittest.Until(t, time.Minute, "it says that an ADD may be under way",
		func() bool { return strings.Contains(p.out.String(), "an ADD may be under way") })
	if held := w.allocations(t)[addrA]; held != oldNetwork+"."+a.container {
		t.Errorf("the address beside it is of %q", held)
	}
	if w.host.Read(t, oldDir+"/"+w.fixed("3.77")) == "" {
		t.Error("the file of an ADD under way is gone")
	}
	w.age(t, oldDir+"/"+w.fixed("3.77"))
	if state := p.wait(); !state.Success() {
		t.Errorf("%v: %s", state, p.out.String())
	}
	w.wantMigrated(t, map[netip.Addr]*sandbox{addrA: a})
}

func TestUpgradeNeedsAPool(t *testing.T) {
	w := upgradeWorld(t)
	w.newPod(t, "stray")
	w.patchPodStatus(t, "stray", `{"status":{"phase":"Running","podIP":"192.0.2.8","podIPs":[{"ip":"192.0.2.8"}]}}`)
	w.host.Write(t, oldDir+"/192.0.2.8", "0123456789abcdef\r\neth0")
	p := w.host.start(t, "/opt/cni/bin/calico-ipam", w.upgradeEnv(), "-upgrade")
	waittest.Until(t, time.Minute, "it is ready, and asks for a pool", func() bool {
		ready, _ := w.ready(t)
		return ready && strings.Contains(p.out.String(), "create an IPPool")
	})
	if out := p.out.String(); !strings.Contains(out, "192.0.2.8") || !strings.Contains(out, w.name+"/stray") {
		t.Errorf("it does not say whose address it is: %s", out)
	}
	p.end()
}

func TestUpgradeWithoutItsNode(t *testing.T) {
	w := upgradeWorld(t)
	for env, want := range map[string]string{
		"KUBECONFIG=" + kubeconfigPath: "KUBERNETES_NODE_NAME",
		"KUBERNETES_NODE_NAME=n":       "KUBERNETES_SERVICE_HOST",
	} {
		a := w.host.exec(t, "/opt/cni/bin/calico-ipam", []string{env}, "", "-upgrade")
		if a.exit != 1 || !strings.Contains(a.stderr, want) {
			t.Errorf("with %s: exit %d, %s", env, a.exit, a.stderr)
		}
	}
}
