package plugin_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const (
	kubeconfigPath = "/etc/cni/net.d/calico-kubeconfig"
	nodenamePath   = "/var/lib/calico/nodename"
	statusPath     = "/var/run/calico/tortie/status"
	mtuPath        = "/var/lib/calico/mtu"
	logPath        = "/var/log/calico/cni/cni.log"
)

// world is what a test has for itself: a node, a namespace and a pool that no other node may use, all of one name, and
// a network. Tests in worlds of their own can run at the same time.
type world struct {
	api   *cluster
	host  *host
	proxy *proxy
	name  string
	cidr  string
	pods  []*sandbox
	uids  map[string]string // of the pods, by name
}

var worlds atomic.Int32

// newWorld makes a world with a pool that has room for many blocks.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := newEmptyWorld(t)
	w.createPool(t, w.cidr, "")
	return w
}

// newEmptyWorld makes a world without a pool.
func newEmptyWorld(t testing.TB) *world {
	t.Helper()
	return newEmptyWorldOn(t, theAPI(t))
}

// newEmptyWorldOn is newEmptyWorld for a view of the API server.
func newEmptyWorldOn(t testing.TB, api *cluster) *world {
	t.Helper()
	n := worlds.Add(1)
	name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(t.Name()), "-")
	w := &world{api: api, host: newHost(t), name: fmt.Sprintf("%.40s-%d", name, n),
		cidr: fmt.Sprintf("%d.%d.0.0/16", 10+n/256, n%256), uids: map[string]string{}}
	w.proxy = newProxy(t, w.host)
	w.api.create(t, manifest(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", w.name)))
	w.api.create(t, manifest(t, fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %[1]s, labels: {world: %[1]s}}}", w.name)))
	t.Cleanup(func() { w.api.forgetNode(t, w.name) })
	// A token of this node, which the chart's fencing keeps from all others'.
	w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, labtest.OnNode(t, labtest.RESTConfig(t), "tortie-cni", w.name).BearerToken))
	w.host.Write(t, nodenamePath, w.name+"\n")
	w.awaitFence(t) // a test before may have been in the other group
	return w
}

// createPool creates a pool for this world's node; more is added to its spec.
func (w *world) createPool(t testing.TB, cidr, more string) {
	t.Helper()
	w.api.create(t, manifest(t, fmt.Sprintf(
		`{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: %[1]s}, spec: {cidr: %[2]s, nodeSelector: "world == `+
			`'%[1]s'"%[3]s}}`, w.name, cidr, more)))
	w.api.settle(t)
}

// kubeconfig is one as the install container writes it.
func kubeconfig(p *proxy, token string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw})
	return labtest.PluginKubeconfig(p.URL, ca, token)
}

// network is the name of the world's network.
func (w *world) network() string { return "net-" + w.name }

// conf is the plugin's configuration as the install container's conflist has it, changed by the edits.
func (w *world) conf(t testing.TB, edits ...func(conf map[string]any)) string {
	t.Helper()
	conf := map[string]any{
		"name": w.network(), "cniVersion": "1.0.0", "type": "calico", "log_level": "info", "log_file_path": logPath,
		"datastore_type": "kubernetes", "nodename": w.name, "mtu": 1440,
		"ipam": map[string]any{"type": "calico-ipam"}, "policy": map[string]any{"type": "k8s"},
		"kubernetes": map[string]any{"kubeconfig": kubeconfigPath},
	}
	for _, edit := range edits {
		edit(conf)
	}
	text, err := json.Marshal(conf)
	errtest.Must(t, err)
	return string(text)
}

// set is an edit of one key.
func set(key string, value any) func(map[string]any) {
	return func(conf map[string]any) { conf[key] = value }
}

// sandbox is one attempt of the runtime at a pod: a container ID and a namespace.
type sandbox struct {
	*world
	pod       string
	uid       string
	container string
	ns        *netnstest.NS
	netns     string
}

// createPod creates a pod on the world's node; the annotations are YAML of a mapping, perhaps empty.
func (w *world) createPod(t testing.TB, name, annotations string) {
	t.Helper()
	w.uids[name] = w.api.create(t, manifest(t, fmt.Sprintf(
		`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %[2]s, annotations: {%[3]s}}, spec: {nodeName: %[2]s, containers: [{name: `+
			`c, image: none}]}}`, name, w.name, annotations)))
}

// sandbox makes a sandbox for a pod, which exists or not.
func (w *world) sandbox(t testing.TB, pod string) *sandbox {
	t.Helper()
	id := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", w.name, pod, len(w.pods)))
	s := &sandbox{world: w, pod: pod, uid: w.uids[pod], container: hex.EncodeToString(id[:])}
	s.ns, s.netns = w.host.pod(t, s.container[:12])
	w.pods = append(w.pods, s)
	return s
}

// newPod creates a pod and its first sandbox.
func (w *world) newPod(t testing.TB, name string) *sandbox {
	t.Helper()
	w.createPod(t, name, "")
	return w.sandbox(t, name)
}

// call is an execution for the sandbox as containerd makes it.
func (s *sandbox) call(t testing.TB, command string, edits ...func(map[string]any)) call {
	t.Helper()
	return call{
		plugin: "calico", command: command, container: s.container, netns: s.netns, ifName: "eth0", path: "/opt/cni/bin",
		args: fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s",
			s.name, s.pod, s.container, s.uid),
		stdin: s.conf(t, edits...),
	}
}

func (s *sandbox) add(t testing.TB) answer {
	t.Helper()
	return s.host.call(t, s.call(t, "ADD"))
}

func (s *sandbox) del(t testing.TB) answer {
	t.Helper()
	return s.host.call(t, s.call(t, "DEL"))
}

// check executes CHECK with what ADD has printed, as runtimes do.
func (s *sandbox) check(t testing.TB, added answer) answer {
	t.Helper()
	return s.host.call(t, s.call(t, "CHECK", set("prevResult", json.RawMessage(added.stdout))))
}

// podAnnotations returns the plugin's annotations of a pod as text.
func (w *world) podAnnotations(t testing.TB, pod string) string {
	t.Helper()
	var lines []string
	for key, value := range w.api.get(t, "Pod", w.name, pod).GetAnnotations() {
		if short, ok := strings.CutPrefix(key, "cni.projectcalico.org/"); ok && !strings.HasSuffix(short, "pools") {
			lines = append(lines, short+"="+value)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// annotateNamespace puts an annotation on the world's namespace.
func (w *world) annotateNamespace(t testing.TB, key, value string) {
	t.Helper()
	w.api.annotate(t, "Namespace", "", w.name, key, value)
}

// annotatePod puts an annotation on a pod of the world, by its status, as plugins do.
func (w *world) annotatePod(t testing.TB, name, key, value string) {
	t.Helper()
	w.api.patch(t, "Pod", w.name, name, annotation(key, value), "status")
}

// state describes everything that an ADD may leave behind, wherever it may.
func (w *world) state(t testing.TB) string {
	t.Helper()
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	network(t, w.host.NS, "node", add)
	for _, s := range w.pods {
		network(t, s.ns, "sandbox "+s.container[:12], add)
	}
	for addr, handle := range w.allocations(t) {
		add("address %s of %s", addr, handle)
	}
	for _, h := range w.api.list(t, "IPAMHandle", "") {
		if strings.HasPrefix(h.GetName(), w.network()+".") {
			add("handle %s", h.GetName())
		}
	}
	for _, p := range w.api.list(t, "Pod", w.name) {
		if a := p.GetAnnotations(); a[api.AnnotationPodIP] != "" || a[api.AnnotationPodIPs] != "" { // empty means released
			add("pod %s: %s", p.GetName(), w.podAnnotations(t, p.GetName()))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// network describes the links and routes of a namespace.
func network(t testing.TB, ns *netnstest.NS, name string, add func(string, ...any)) {
	t.Helper()
	links, err := ns.Conn.Links()
	errtest.Must(t, err)
	for _, l := range links {
		add("%s: link %s", name, l.Name)
	}
	routes, err := ns.Conn.Routes(netlinkx.RouteFilter{Family: netlinkx.IPv4})
	errtest.Must(t, err)
	for _, r := range routes {
		add("%s: route %s", name, r.Dst)
	}
}

// allocations maps the addresses that are taken in the world's pool to the handles that hold them.
func (w *world) allocations(t testing.TB) map[netip.Addr]string {
	t.Helper()
	taken := map[netip.Addr]string{}
	pool := netip.MustParsePrefix(w.cidr)
	for _, b := range w.api.list(t, "IPAMBlock", "") {
		text, _, _ := unstructured.NestedString(b.Object, "spec", "cidr")
		cidr := netip.MustParsePrefix(text)
		if !pool.Contains(cidr.Addr()) {
			continue
		}
		ordinals, _, _ := unstructured.NestedSlice(b.Object, "spec", "allocations")
		owners, _, _ := unstructured.NestedSlice(b.Object, "spec", "attributes")
		a := cidr.Addr()
		for _, at := range ordinals {
			if at != nil {
				taken[a] = fmt.Sprint(owners[at.(int64)].(map[string]any)["handle_id"])
			}
			a = a.Next()
		}
	}
	return taken
}

// unchanged returns a function that fails the test unless everything is as it is now.
func (w *world) unchanged(t testing.TB) func() {
	t.Helper()
	was := w.state(t)
	return func() {
		t.Helper()
		if diff := cmp.Diff(strings.Split(was, "\n"), strings.Split(w.state(t), "\n")); diff != "" {
			t.Errorf("something is left behind (-before +after):\n%s", diff)
		}
	}
}

// affinities names the blocks that the world's node has claimed.
func (w *world) affinities(t testing.TB) []string {
	t.Helper()
	var names []string
	for _, a := range w.api.list(t, "BlockAffinity", "") {
		if node, _, _ := unstructured.NestedString(a.Object, "spec", "node"); node == w.name {
			names = append(names, a.GetName())
		}
	}
	return names
}
