package controllers

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/controllers"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// asProgram in the environment makes the test binary the program itself.
const asProgram = "TORTIE_TEST_AS_PROGRAM=1"

func TestMain(m *testing.M) {
	if name, value, _ := strings.Cut(asProgram, "="); os.Getenv(name) == value {
		os.Exit(Main(os.Args[1:]))
	}
	// Most of a test is waiting, for a lease or for a deadline. -parallel overrides this.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	code := m.Run()
	whole := tier.Size(false, true)
	if only := flag.Lookup("test.run").Value.String(); code == 0 && whole && only == "" && flag.Lookup("test.bench").Value.String() == "" {
		code = rights.check()
	}
	os.Exit(code)
}

// account is the chart's service account of the controllers.
const account = "tortie-kube-controllers"

// world is a cluster in which the test acts as the kubelets.
type world struct {
	t     testing.TB
	admin *rest.Config
	core  clientset.Interface
	store *kubernetes.Store
	ipam  *ipam.Client
}

// newWorld makes the cluster's objects on a server of the test's own.
func newWorld(t testing.TB, server *labtest.Server) *world {
	t.Helper()
	return newWorldOf(t, server, labtest.Current(t))
}

// newWorldOf is newWorld on a server with the definitions of a group.
func newWorldOf(t testing.TB, server *labtest.Server, in *groups.Current) *world {
	t.Helper()
	admin, err := cluster.Connect(server.Kubeconfig(), "test")
	errtest.Must(t, err)
	admin.QPS, admin.Burst = 1000, 1000
	w := &world{t: t, admin: admin, core: clientset.NewForConfigOrDie(admin)}
	if w.store, err = cluster.OpenStore(cluster.Server{Config: admin, Group: in}); err != nil {
		t.Fatal(err)
	}
	w.ipam = ipam.NewClient(w.store, time.Now)
	yes := true
	w.create(&api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: &yes}})
	w.create(&api.IPPool{Meta: api.Meta{Name: "v4"}, Spec: api.IPPoolSpec{CIDR: "10.44.0.0/16"}})
	w.create(&api.IPPool{Meta: api.Meta{Name: "v6"}, Spec: api.IPPoolSpec{CIDR: "fd44::/48"}})
	return w
}

func (w *world) create(objects ...api.Resource) {
	w.t.Helper()
	for _, obj := range objects {
		errtest.Must(w.t, w.store.Create(w.t.Context(), obj))
	}
}

func (w *world) node(names ...string) {
	for _, name := range names {
		w.create(&api.Node{Meta: api.Meta{Name: name}})
	}
}

func (w *world) deleteNode(name string) {
	w.t.Helper()
	errtest.Must(w.t, w.core.CoreV1().Nodes().Delete(w.t.Context(), name, metav1.DeleteOptions{}))
}

// pod creates a pod without an owner, and sets the status that the kubelet would set, if any.
func (w *world) pod(name, node string, phase corev1.PodPhase, addresses ...string) {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "pause"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	p, err := w.core.CoreV1().Pods("default").Create(w.t.Context(), p, metav1.CreateOptions{})
	errtest.Must(w.t, err)
	if phase == "" {
		return
	}
	p.Status.Phase = phase
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
		p.Status.PodIP = p.Status.PodIPs[0].IP
	}
	if _, err := w.core.CoreV1().Pods("default").UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// assign gives a container of a pod an address of each family, as the plugin does.
func (w *world) assign(container, node, pod string) []netip.Addr {
	w.t.Helper()
	attrs := map[string]string{"node": node, "pod": pod, "namespace": "default", "timestamp": time.Now().UTC().String()}
	return w.give("k8s-pod-network."+container, node, attrs, api.UseWorkload)
}

func (w *world) give(handle, node string, attrs map[string]string, use api.AllowedUse) []netip.Addr {
	w.t.Helper()
	got, err := w.ipam.Assign(w.t.Context(), ipam.Request{
		Owner: ipam.Owner{Handle: handle, Attrs: attrs}, Host: node, V4: true, V6: use == api.UseWorkload, Use: use,
	})
	errtest.Must(w.t, err)
	var out []netip.Addr
	for _, a := range got {
		out = append(out, a.Address)
	}
	return out
}

func texts(addresses []netip.Addr) []string {
	var out []string
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return out
}

// run starts a pod that lives, and returns its addresses.
func (w *world) run(name, node string) []netip.Addr {
	w.t.Helper()
	got := w.assign("of-"+name, node, name)
	w.pod(name, node, corev1.PodRunning, texts(got)...)
	return got
}

// view reads the objects of the API server, which may have started a moment ago.
func (w *world) view() (v inventory.View) {
	w.t.Helper()
	eventually(w.t, func() (err error) {
		v, err = inventory.Read(w.t.Context(), inventory.Source{IPAM: w.store, Cluster: w.store}, time.Now)
		return err
	})
	return v
}

// held returns the assigned addresses, with their handles.
func held(v *inventory.View) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for i := range v.Blocks {
		for _, a := range v.Blocks[i].Allocations {
			out[a.Address] = a.Handle
		}
	}
	return out
}

// heldBy returns the addresses that a handle holds.
func heldBy(v *inventory.View, handle string) []netip.Addr {
	var out []netip.Addr
	for a, of := range held(v) {
		if of == handle {
			out = append(out, a)
		}
	}
	return out
}

// process is one kube-controllers.
type process struct {
	t       testing.TB
	cmd     *exec.Cmd
	address string
	name    string
	log     logtest.Buffer // stdout and stderr
}

// start starts the program with the rights that the chart gives it. It ends with the test.
func (w *world) start(name, kubeconfig string, env ...string) *process {
	w.t.Helper()
	if kubeconfig == "" {
		kubeconfig = labtest.WriteKubeconfig(w.t, w.t.TempDir(), labtest.AsOn(w.t, w.admin, account))
	}
	l, err := new(net.ListenConfig).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
	errtest.Must(w.t, err)
	p := &process{t: w.t, name: name, address: l.Addr().String()}
	l.Close()
	p.cmd = exec.CommandContext(context.WithoutCancel(w.t.Context()), os.Args[0])
	p.cmd.Env = append(os.Environ(), append([]string{
		asProgram, "KUBECONFIG=" + kubeconfig, "POD_NAME=" + name, "TORTIE_CONTROLLERS_ADDRESS=" + p.address,
		"TORTIE_LEAK_GRACE_PERIOD=4s", "TORTIE_NODE_GRACE_PERIOD=1s",
	}, env...)...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	errtest.Must(w.t, p.cmd.Start())
	w.t.Cleanup(func() {
		p.kill()
		if w.t.Failed() {
			text := p.log.String()
			w.t.Logf("%s:\n%s", name, text[max(0, len(text)-6000):])
		}
	})
	return p
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// status requests the process' status.
func (p *process) status() (controllers.Status, error) {
	var s controllers.Status
	text, err := p.get("/status")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(text), &s)
}

func (p *process) get(path string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get("http://" + p.address + path)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, answer.Status, text)
	}
	return string(text), err
}

// leads waits until one of the processes leads, and returns it.
func leads(t testing.TB, of ...*process) *process {
	t.Helper()
	var found *process
	eventually(t, func() error {
		for _, p := range of {
			if s, err := p.status(); err == nil && s.Leading {
				found = p
				return nil
			}
		}
		return fmt.Errorf("nobody leads")
	})
	return found
}

func eventually(t testing.TB, check func() error) {
	t.Helper()
	waittest.For(t, 90*time.Second, check)
}

// stays fails the test unless addresses are held as before.
func (w *world) stays(what string, v *inventory.View, handle string, addresses []netip.Addr) {
	w.t.Helper()
	taken := held(v)
	for _, a := range addresses {
		if taken[a] != handle {
			w.t.Errorf("%s lost its address %s", what, a)
		}
	}
	if !slices.ContainsFunc(v.Handles, func(h inventory.Handle) bool { return h.ID == handle }) {
		w.t.Errorf("%s lost its handle %s", what, handle)
	}
}
