package plugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The tests here are about callers other than containerd and CRI-O with calico: other main plugins that execute
// calico-ipam, other IPAM plugins that calico executes, hand-made arguments and configurations. The runtime is libcni,
// the other plugins are the CNI project's.

// onHost lets libcni execute plugins on a test's node.
type onHost struct {
	version.PluginDecoder
	t    testing.TB
	host *host
}

// ExecPlugin implements invoke.Exec.
func (o *onHost) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	environ = slices.DeleteFunc(environ, func(kv string) bool { return !strings.HasPrefix(kv, "CNI_") })
	a := o.host.exec(o.t, path, environ, string(stdin))
	if a.exit == 0 {
		return []byte(a.stdout), nil
	}
	e := &types.Error{}
	if err := json.Unmarshal([]byte(a.stdout), e); err != nil {
		return nil, fmt.Errorf("exit %d: %s", a.exit, a.stderr)
	}
	return nil, e
}

// FindInPath implements invoke.Exec.
func (o *onHost) FindInPath(plugin string, paths []string) (string, error) {
	return paths[0] + "/" + plugin, nil
}

var _ invoke.Exec = (*onHost)(nil)

// runtime is libcni with the conflist of a network.
type runtime struct {
	*libcni.CNIConfig
	list *libcni.NetworkConfigList
}

func (w *world) runtime(t testing.TB, conflist string) *runtime {
	t.Helper()
	list, err := libcni.ConfListFromBytes([]byte(conflist))
	errtest.Must(t, err)
	return &runtime{libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, t.TempDir(), &onHost{t: t, host: w.host}), list}
}

// attachment returns an interface of a sandbox; args are the pod's, if any.
func (s *sandbox) attachment(ifName string, args ...string) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{ContainerID: s.container, NetNS: s.netns, IfName: ifName}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		rt.Args = append(rt.Args, [2]string{key, value})
	}
	return rt
}

// podArgs are the arguments that name the sandbox's pod, and one of another plugin's, without IgnoreUnknown.
func (s *sandbox) podArgs() []string {
	return []string{"K8S_POD_NAMESPACE=" + s.name, "K8S_POD_NAME=" + s.pod, "OTHER_PLUGIN=1"}
}

func (r *runtime) add(t testing.TB, rt *libcni.RuntimeConf) *types100.Result {
	t.Helper()
	answer, err := r.AddNetworkList(t.Context(), r.list, rt)
	if err != nil {
		t.Fatalf("ADD: %v", err)
	}
	res, err := types100.NewResultFromResult(answer)
	errtest.Must(t, err)
	return res
}

func (r *runtime) check(t testing.TB, rt *libcni.RuntimeConf) {
	t.Helper()
	if err := r.CheckNetworkList(t.Context(), r.list, rt); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func (r *runtime) del(t testing.TB, rt *libcni.RuntimeConf) {
	t.Helper()
	if err := r.DelNetworkList(t.Context(), r.list, rt); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// noted returns the attributes of an assigned address in the blocks of the world's pool.
func (w *world) noted(t testing.TB, of netip.Addr) map[string]string {
	t.Helper()
	for _, b := range w.api.list(t, "IPAMBlock", "") {
		text, _, _ := unstructured.NestedString(b.Object, "spec", "cidr")
		cidr := netip.MustParsePrefix(text)
		if !cidr.Contains(of) {
			continue
		}
		ordinals, _, _ := unstructured.NestedSlice(b.Object, "spec", "allocations")
		owners, _, _ := unstructured.NestedSlice(b.Object, "spec", "attributes")
		for i, a := 0, cidr.Addr(); i < len(ordinals); i, a = i+1, a.Next() {
			if at := ordinals[i]; a == of && at != nil {
				noted, _, _ := unstructured.NestedStringMap(owners[at.(int64)].(map[string]any), "secondary")
				return noted
			}
		}
	}
	return nil
}

// renamed gives the node's kernel a host name, which only the node sees.
func (w *world) renamed(t testing.TB, name string) {
	t.Helper()
	w.host.On(t, func() error {
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return err
		}
		return unix.Sethostname([]byte(name))
	})
}

// calico-ipam under the main plugins of the CNI project: no policy, no kubeconfig, no pod, and the node's name from
// wherever it is.
func TestOtherMainPlugins(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		plugin string // the keys of the main plugin, and where the node's name is in the configuration
		node   func(*testing.T, *world)
		pod    bool
	}{
		"bridge": {`"type": "bridge", "bridge": "br0", "nodename": "NODE"`, nil, false},
		"macvlan, node of the file": {`"type": "macvlan", "master": "eth0", "mode": "bridge", "mtu": 1400`,
			func(t *testing.T, w *world) { w.host.Write(t, nodenamePath, w.name+"\n") }, false},
		"macvlan, node of the host name": {`"type": "macvlan", "master": "eth0", "mode": "private"`,
			func(t *testing.T, w *world) { w.renamed(t, strings.ToUpper(w.name)) }, false},
		"macvlan, as Multus calls it": {
			`"type": "macvlan", "master": "eth0", "nodename": "NODE", "policy": {"type": "of-another-plugin"}, "device_type": "x"`, nil, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.newPod(t, "web")
			w.host.remove(t, nodenamePath) // the agent need not have run
			if tt.node != nil {
				tt.node(t, w)
			}
			var args []string
			noted := map[string]string{"node": w.name, "tortie.io/interface": "net1"}
			if tt.pod {
				args, noted["pod"], noted["namespace"] = append(s.podArgs(), "IgnoreUnknown=1"), "web", w.name
			}
			r := w.runtime(t, fmt.Sprintf(`{"name": %q, "cniVersion": "1.1.0", "plugins": [{%s, "ipam": {"type": "calico-ipam"}}]}`,
				w.network(), strings.ReplaceAll(tt.plugin, "NODE", w.name)))
			lives(t, s, r, s.attachment("net1", args...), noted)
		})
	}
}

// lives runs all verbs on an attachment of another main plugin.
func lives(t *testing.T, s *sandbox, r *runtime, rt *libcni.RuntimeConf, noted map[string]string) {
	t.Helper()
	if err := r.GetStatusNetworkList(t.Context(), r.list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	nothing := s.unchanged(t)
	res := r.add(t, rt)
	a := address(t, res)
	if got := s.allocations(t); cmp.Diff(map[netip.Addr]string{a: s.network() + "." + s.container}, got) != "" {
		t.Errorf("addresses %v, want %s of the container", got, a)
	}
	got := s.noted(t, a)
	delete(got, "timestamp")
	difftest.Want(t, "what the block notes", noted, got)
	if has := s.ns.Run(t, "ip", "-o", "addr", "show", "dev", rt.IfName); !strings.Contains(has, " "+res.IPs[0].Address.String()+" ") {
		t.Errorf("%s has %s, want %s", rt.IfName, has, res.IPs[0].Address.String())
	}
	if text := s.podAnnotations(t, s.pod); text != "" {
		t.Errorf("the pod says %s: its annotations are the main network's", text)
	}
	r.check(t, rt)
	r.del(t, rt)
	r.del(t, rt)
	if got := s.allocations(t); len(got) > 0 {
		t.Errorf("after DEL: %v", got)
	}
	s.ignoreLink(t, "br0") // which the bridge plugin leaves
	nothing()
}

// ignoreLink removes a link of the node, if it is there.
func (w *world) ignoreLink(t testing.TB, name string) {
	t.Helper()
	if _, err := w.host.Conn.LinkByName(name); err == nil {
		w.host.Run(t, "ip", "link", "del", name)
	}
}

// An IPAM plugin gets IgnoreUnknown, without which host-local refuses the names of the pod, from whoever calls calico.
func TestArgumentsOfHandMadeCallers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	nothing := w.unchanged(t)
	c := s.callWith(t, "ipam", hostLocal(map[string]any{"subnet": "10.241.0.0/24"}), "cniVersion", "1.1.0")
	c.args = strings.Join(s.podArgs(), ";") + ";"
	added := w.host.call(t, c).ok(t)
	wantAddrs(t, []netip.Addr{address(t, added.result(t))}, "10.241.0.0/24")
	verb := func(command string, edits ...any) {
		t.Helper()
		v := s.callWith(t, append([]any{"ipam", hostLocal(map[string]any{"subnet": "10.241.0.0/24"}), "cniVersion", "1.1.0"}, edits...)...)
		v.command, v.args = command, c.args
		w.host.call(t, v).ok(t)
	}
	verb("CHECK", "prevResult", json.RawMessage(added.stdout))
	verb("STATUS")
	verb("DEL")
	nothing()
}

// The conflist of a Calico walk-through has neither policy nor kubernetes: the pod is from CNI_ARGS, the kubeconfig is
// the installer's.
func TestConflistOfAWalkThrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	w.annotatePod(t, "web", "cni.projectcalico.org/ipAddrs", "malformed") // without policy.type k8s nobody reads it
	r := w.runtime(t, fmt.Sprintf(`{
		"name": %q, "cniVersion": "0.3.1",
		"plugins": [{"type": "calico", "log_level": "info", "datastore_type": "kubernetes", "nodename": %q, "ipam": {"type": "calico-ipam"}}]
	}`, w.network(), w.name))
	nothing := w.unchanged(t)
	rt := s.attachment("eth0", s.podArgs()...)
	a := address(t, r.add(t, rt))
	s.wantHeld(t, map[netip.Addr]*sandbox{a: s})
	if got := w.podAnnotations(t, "web"); !strings.Contains(got, "podIP="+a.String()+"/32") ||
		!strings.Contains(got, "containerID="+s.container) {
		t.Errorf("the pod says %s", got)
	}
	if has := s.ns.Run(t, "ip", "-o", "addr", "show", "dev", "eth0"); !strings.Contains(has, " "+a.String()+"/32 ") {
		t.Errorf("eth0 has %s", has)
	}
	r.del(t, rt)
	nothing()

	w.host.remove(t, kubeconfigPath)
	if _, err := r.AddNetworkList(t.Context(), r.list, rt); err == nil || !strings.Contains(err.Error(), kubeconfigPath) {
		t.Errorf("without the installer's kubeconfig: %v", err)
	}
	nothing()
}

// calico-ipam uses the names that a caller passes. None of them reaches another container's addresses.
func TestIPAMKeepsContainersApart(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t), newWorld(t)
	victim, attacker := w.newPod(t, "victim"), w.newPod(t, "attacker")
	a := address(t, victim.add(t).result(t))
	bare := func(w *world, command, network, container string) call {
		c := attacker.call(t, command, set("name", network), set("type", "bridge"), set("nodename", w.name))
		c.plugin, c.container, c.args = "calico-ipam", container, ""
		return c
	}
	network, container := w.network(), victim.container
	nothing, elsewhere := w.unchanged(t), other.unchanged(t)
	asPod := bare(w, "ADD", network, container)
	asPod.args = strings.Join(attacker.podArgs(), ";")
	for name, tt := range map[string]struct {
		world *world
		add   call
	}{
		"the container's ID, and no pod":      {w, bare(w, "ADD", network, container)},
		"the container's ID, and another pod": {w, asPod},
		"the container's ID, on another node": {other, bare(other, "ADD", network, container)},
		"its address":                         {w, func() call { c := bare(w, "ADD", network, "c1"); c.args = "IP=" + a.String(); return c }()},
	} {
		if e := tt.world.host.call(t, tt.add).failure(t); e.Code != 103 {
			t.Errorf("%s: code %d: %s", name, e.Code, e.Msg)
		}
		del := tt.add
		del.command = "DEL"
		tt.world.host.call(t, del).ok(t)
		nothing()
		elsewhere()
	}
	// A Calico before version 3 had handles of other names, which today's handles may have.
	w.host.call(t, bare(w, "DEL", "other", network+"."+container)).ok(t)
	nothing()
	checked := bare(w, "CHECK", network, container)
	checked.stdin = attacker.conf(t, set("type", "bridge"),
		set("prevResult", map[string]any{"cniVersion": "1.0.0", "ips": []map[string]string{{"address": a.String() + "/26"}}}))
	if e := w.host.call(t, checked).failure(t); !strings.Contains(e.Msg, "not held") {
		t.Errorf("CHECK without the pod: %s", e.Msg)
	}
	victim.del(t).ok(t)
	if got := w.allocations(t); len(got) > 0 {
		t.Errorf("after its own DEL: %v", got)
	}
}

// A pod may have a name by which its handle of a Calico before version 3 equals another container's handle today.
func TestNoHandleByThePodsName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim := w.newPod(t, "victim")
	network := set("name", w.name) // as a namespace is called
	a := address(t, w.host.call(t, victim.call(t, "ADD", network)).result(t))
	attacker := w.newPod(t, victim.container)
	nothing := w.unchanged(t)
	attacker.del(t).ok(t)
	nothing()
	if got := w.allocations(t); got[a] != w.name+"."+victim.container {
		t.Errorf("addresses %v", got)
	}
}

// Two attachments of one container to one network, as Multus makes them, have an address each.
func TestTwoInterfacesOfANetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	r := w.runtime(t, fmt.Sprintf(`{"name": %q, "cniVersion": "1.1.0", "plugins": [
		{"type": "macvlan", "master": "eth0", "nodename": %q, "ipam": {"type": "calico-ipam"}}]}`, w.network(), w.name))
	nothing := w.unchanged(t)
	first, second := s.attachment("net1"), s.attachment("net2")
	a, b := address(t, r.add(t, first)), address(t, r.add(t, second))
	handle := w.network() + "." + s.container
	if diff := cmp.Diff(map[netip.Addr]string{a: handle, b: handle}, w.allocations(t)); diff != "" || a == b {
		t.Fatalf("%s and %s (-want +got):\n%s", a, b, diff)
	}
	r.check(t, first)
	r.check(t, second)
	again := s.call(t, "ADD", set("type", "macvlan"))
	again.plugin, again.ifName, again.args = "calico-ipam", "net2", ""
	if got := address(t, w.host.call(t, again).result(t)); got != b {
		t.Errorf("net2 asks again and gets %s, and had %s", got, b)
	}
	r.del(t, first)
	difftest.Want(t, "after DEL of net1", map[netip.Addr]string{b: handle}, w.allocations(t))
	r.check(t, second)
	r.del(t, second)
	nothing()
}

// GC frees addresses of containers that the runtime does not list, also without pods.
func TestGCOfAnotherMainPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept, stale := w.newPod(t, "kept"), w.newPod(t, "stale")
	r := w.runtime(t, fmt.Sprintf(`{"name": %q, "cniVersion": "1.1.0", "plugins": [
		{"type": "bridge", "bridge": "br0", "nodename": %q, "ipam": {"type": "calico-ipam"}}]}`, w.network(), w.name))
	a := address(t, r.add(t, kept.attachment("eth0")))
	r.add(t, stale.attachment("eth0"))
	c := w.gcCall(t, "calico-ipam", kept)
	c.stdin = strings.Replace(c.stdin, `"type":"calico"`, `"type":"bridge"`, 1)
	w.host.call(t, c).ok(t)
	difftest.Want(t, "addresses", map[netip.Addr]string{a: w.network() + "." + kept.container}, w.allocations(t))
}

// Addresses of a node that does not exist are soon freed as leaked: a host name that is no Node's is refused.
func TestMachineThatIsNoNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	w.host.remove(t, nodenamePath)
	w.renamed(t, "No-Such-Node")
	nothing := w.unchanged(t)
	for _, plugin := range []string{"calico", "calico-ipam"} {
		c := s.call(t, "ADD", set("nodename", ""), set("nodename_file_optional", true))
		c.plugin = plugin
		w.wantFailure(t, w.host.call(t, c), types.ErrInvalidNetworkConfig, "nodename", `"no-such-node"`, "set nodename")
	}
	nothing()
}
