package plugin_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// The plugins' own codes.
const (
	codeUnauthorized uint = 100
	codeNoPool       uint = 101
	codeExhausted    uint = 102
	codeTaken        uint = 103
)

// wantFailure fails the test unless the execution failed with that code and a text that names the cause and the remedy.
// It also looks for secrets in all output.
func (w *world) wantFailure(t testing.TB, a answer, code uint, words ...string) {
	t.Helper()
	e := a.failure(t)
	if e.Code != code {
		t.Errorf("code %d, want %d: %s", e.Code, code, e.Error())
	}
	difftest.Contains(t, e.Error(), words...)
	w.noSecrets(t, a)
}

const wrongToken = "wrong-token-0123456789"

func (w *world) noSecrets(t testing.TB, a answer) {
	t.Helper()
	seen := a.stdout + a.stderr + w.host.Read(t, logPath)
	for _, token := range []string{w.api.token, w.api.barred, wrongToken} {
		if strings.Contains(seen, token) {
			t.Errorf("a token is in the output or in the log: %s", seen)
		}
	}
}

// harm is one thing that is wrong when ADD is called.
type harm struct {
	name  string
	pool  string // more of the pool's spec
	do    func(t *testing.T, s *sandbox)
	edit  func(c *call)
	code  uint
	words []string
}

func putKubeconfig(text func(w *world) string) func(*testing.T, *sandbox) {
	return func(t *testing.T, s *sandbox) { s.host.Write(t, kubeconfigPath, text(s.world)) }
}

func follow(r rule) func(*testing.T, *sandbox) {
	return func(_ *testing.T, s *sandbox) { s.proxy.setRule(r) }
}

const (
	installLog = "log of container install" // what failures of the kubeconfig and the token point to
	patchPod   = "calico PATCH pods/status"
)

var harms = []harm{
	{name: "no kubeconfig", do: func(t *testing.T, s *sandbox) { s.host.remove(t, kubeconfigPath) },
		code: types.ErrInvalidNetworkConfig, words: []string{kubeconfigPath, "no such file", "install"}},
	{name: "malformed kubeconfig", do: putKubeconfig(func(w *world) string { return "users: [{user: {token: " + w.api.token }),
		code: types.ErrInvalidNetworkConfig, words: []string{kubeconfigPath, "not valid YAML", "container install"}},
	{name: "kubeconfig without a server", do: putKubeconfig(func(w *world) string { return labtest.PluginKubeconfig("", nil, w.api.token) }),
		code: types.ErrInvalidNetworkConfig, words: []string{kubeconfigPath, "server is empty", "container install"}},
	{name: "kubeconfig with a server that is no URL",
		do:   putKubeconfig(func(w *world) string { return labtest.PluginKubeconfig("10.96.0.1", nil, w.api.token) }),
		code: types.ErrInvalidNetworkConfig, words: []string{kubeconfigPath, `"10.96.0.1"`, "container install"}},
	{name: "kubeconfig with a CA that is none", do: putKubeconfig(func(w *world) string {
		return labtest.PluginKubeconfig(w.proxy.URL, []byte("none"), w.api.token)
	}), code: types.ErrInvalidNetworkConfig, words: []string{kubeconfigPath, "certificate-authority", "container install"}},
	{name: "wrong token", do: putKubeconfig(func(w *world) string { return kubeconfig(w.proxy, wrongToken) }),
		code: codeUnauthorized, words: []string{"HTTP 401", "token", "install"}},
	{name: "wrong token in the configuration", edit: func(c *call) {
		c.stdin = strings.Replace(c.stdin, `"policy":{"type":"k8s"}`, `"policy":{"type":"k8s","k8s_auth_token":"`+wrongToken+`"}`, 1)
	}, code: codeUnauthorized, words: []string{"HTTP 401"}},
	{name: "token without rights", do: putKubeconfig(func(w *world) string { return kubeconfig(w.proxy, w.api.barred) }),
		code: codeUnauthorized, words: []string{"HTTP 403", "system:serviceaccount:kube-system:barred", "clusterrole tortie-cni"}},
	{name: "unreachable API server",
		do:   putKubeconfig(func(w *world) string { return labtest.PluginKubeconfig("https://127.0.0.1:1", nil, w.api.token) }),
		code: types.ErrTryAgainLater, words: []string{"https://127.0.0.1:1", "connection refused", "check that the API server runs"}},
	{name: "API server with another CA",
		do:   putKubeconfig(func(w *world) string { return labtest.PluginKubeconfig(w.proxy.URL, nil, w.api.token) }),
		code: types.ErrTryAgainLater, words: []string{"certificate"}},

	{name: "disabled pool", pool: ", disabled: true", code: codeNoPool, words: []string{"testbadinput-disabled-pool", "disabled"}},
	{name: "pool for others", pool: `, namespaceSelector: "team == 'red'"`, code: codeNoPool, words: []string{"namespaceSelector", "team"}},
	{name: "unknown pool", edit: func(c *call) {
		c.stdin = strings.Replace(c.stdin, `"type":"calico-ipam"`, `"type":"calico-ipam","ipv4_pools":["none"]`, 1)
	}, code: codeNoPool, words: []string{"the given pool (none)", "does not exist"}},
	{name: "no family", edit: func(c *call) {
		c.stdin = strings.Replace(c.stdin, `"type":"calico-ipam"`, `"type":"calico-ipam","assign_ipv4":"false"`, 1)
	}, code: types.ErrInvalidNetworkConfig, words: []string{"assign_ipv4", "assign_ipv6"}},
	{name: "no node", do: func(t *testing.T, s *sandbox) {
		s.host.Write(t, kubeconfigPath, kubeconfig(s.proxy, s.api.token)) // one that is bound to the Node would go with it
		s.api.delete(t, "Node", "", s.name)
	},
		code: types.ErrInternal, words: []string{"nodes/testbadinput-no-node", "nodename"}},

	{name: "no nodename file", do: func(t *testing.T, s *sandbox) { s.host.remove(t, nodenamePath) },
		code: types.ErrTryAgainLater, words: []string{nodenamePath, "tortie-node has not run"}},
	{name: "MTU file of the agent damaged", do: func(t *testing.T, s *sandbox) { s.host.Write(t, mtuPath, "big") },
		edit: func(c *call) { c.stdin = strings.Replace(c.stdin, `"mtu":1440`, `"mtu":0`, 1) },
		code: types.ErrInvalidNetworkConfig, words: []string{mtuPath, `"big"`, "restart tortie-node"}},
	{name: "pod not in the API", do: func(t *testing.T, s *sandbox) { s.api.delete(t, "Pod", s.name, s.pod) },
		code: types.ErrUnknownContainer, words: []string{"pods/web", "deleted"}},
	{name: "malformed annotation", do: func(t *testing.T, s *sandbox) {
		s.annotateNamespace(t, "cni.projectcalico.org/ipv4pools", "default-pool")
	}, code: types.ErrInvalidNetworkConfig, words: []string{"ipv4pools", "namespace", `"default-pool"`, "JSON list"}},

	{name: "netns is no namespace", edit: func(c *call) { c.netns = kubeconfigPath },
		code: types.ErrInvalidNetNS, words: []string{kubeconfigPath, "not a network namespace"}},
	{name: "netns is another kind of namespace", edit: func(c *call) { c.netns = "/proc/self/ns/mnt" },
		code: types.ErrInvalidNetNS, words: []string{"/proc/self/ns/mnt", "not a network namespace"}},
	{name: "netns is gone", edit: func(c *call) { c.netns += "x" }, code: types.ErrInvalidNetNS, words: []string{"no such file", "sandbox"}},
	{name: "netns is the node's", edit: func(c *call) { c.netns = "/proc/self/ns/net" },
		code: types.ErrInvalidNetNS, words: []string{"the node's own"}},
	{name: "no IPAM plugin", do: func(t *testing.T, s *sandbox) { s.host.Write(t, "/opt/empty/README", "") },
		edit: func(c *call) {
			c.path, c.stdin = "/opt/empty", strings.Replace(c.stdin, `"type":"calico-ipam"`, `"type":"other-ipam"`, 1)
		},
		code: types.ErrInvalidNetworkConfig, words: []string{"other-ipam", "/opt/empty", "install it"}},
	{name: "IPAM plugin dies after it assigned", do: dyingIPAM, edit: func(c *call) {
		c.path, c.stdin = "/opt/dying", strings.Replace(c.stdin, `"type":"calico-ipam"`, `"type":"dying"`, 1)
	},
		code: types.ErrInternal, words: []string{"IPAM plugin dying", "netplugin failed"}},
	{name: "interface of somebody else", do: func(t *testing.T, s *sandbox) {
		netnstest.Cable(t, s.ns, "eth0", netnstest.New(t), "other")
	}, code: types.ErrInternal, words: []string{"eth0 already", "plugin that ran before"}},

	{name: "pod patch refused", do: follow(refuse(patchPod, http.StatusForbidden)), code: codeUnauthorized,
		words: []string{"note the address on the pod", "HTTP 403", installLog}},
	{name: "pod patch fails", do: follow(refuse(patchPod, http.StatusInternalServerError)), code: types.ErrTryAgainLater,
		words: []string{"note the address on the pod", "HTTP 500", "check that the API server runs"}},
	{name: "answer to the block lost", do: follow(loseAnswer("calico POST ipamblocks")), code: types.ErrTryAgainLater,
		words: []string{"POST", "ipamblocks", "no answer"}},
}

// dyingIPAM installs an IPAM plugin that assigns an address and dies before it prints its result.
func dyingIPAM(t *testing.T, s *sandbox) {
	const path = "/opt/dying/dying"
	s.host.Write(t, path,
		"#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exec /opt/cni/bin/calico-ipam\n/opt/cni/bin/calico-ipam >/dev/null\nkill -9 $$\n")
	s.host.On(t, func() error { return os.Chmod(path, 0o755) })
}

// TestBadInput: whatever is wrong, ADD's error names it and the remedy, and nothing is left behind.
func TestBadInput(t *testing.T) {
	for _, h := range harms {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			w := newEmptyWorld(t)
			w.createPool(t, w.cidr, h.pool)
			s := w.newPod(t, "web")
			if h.do != nil {
				h.do(t, s)
			}
			nothing := w.unchanged(t)
			c := s.call(t, "ADD", set("log_level", "debug"))
			if h.edit != nil {
				h.edit(&c)
			}
			w.wantFailure(t, w.host.call(t, c).undelayed(t), h.code, h.words...)
			nothing()
		})
	}
}

// The tests below are not parallel: they run while no other test has a world, and may change shared objects.

func TestNoPool(t *testing.T) {
	w := newEmptyWorld(t)
	w.api.settle(t)
	s := w.newPod(t, "web")
	nothing := w.unchanged(t)
	w.wantFailure(t, s.add(t), codeNoPool, "there is no IPv4 IPPool", "create one", "CALICO_IPV4POOL_CIDR")
	nothing()
}

func TestDatastoreNotReady(t *testing.T) {
	w := newWorld(t)
	s, other := w.newPod(t, "web"), w.newPod(t, "other")
	nothing := w.unchanged(t)
	restore := func() {
		if err := w.api.setReady(context.Background(), true); err != nil {
			t.Error(err)
		}
		w.awaitFence(t)
	}
	t.Cleanup(func() { _ = w.api.setReady(context.Background(), true) })
	for _, tt := range []struct {
		name   string
		make   func(t *testing.T)
		status uint // the code of STATUS
		words  []string
	}{
		{"locked", func(t *testing.T) { // as long as that lasts no pod starts on any node
			errtest.Must(t, w.api.setReady(t.Context(), false))
		}, 0, []string{"datastoreReady", "ClusterInformation default", "docs/apigroups.md"}},
		{"missing", func(t *testing.T) { w.api.delete(t, "ClusterInformation", "", "default") },
			50, []string{"there is no ClusterInformation default", "tortie-node"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.make(t)
			w.wantStatus(t, tt.status)
			w.wantFailure(t, s.add(t), types.ErrTryAgainLater, tt.words...)
			nothing()
			// Nothing may be released in the middle of a migration either, but the container can go.
			restore()
			address := address(t, s.add(t).result(t))
			tt.make(t)
			s.del(t).ok(t)
			w.wantHeld(t, map[netip.Addr]*sandbox{address: s})
			s.wantJournal(t, tt.words...)
			restore()
			other.del(t).ok(t)
			nothing()
			w.wantEmptyJournal(t)
		})
	}
}

// The pool has four addresses; the fifth pod gets none, until one of the four is deleted.
func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	w := newEmptyWorld(t)
	w.createPool(t, strings.Replace(w.cidr, "/16", "/30", 1), ", blockSize: 30")
	var pods []*sandbox
	for i := range 5 {
		pods = append(pods, w.newPod(t, fmt.Sprintf("web-%d", i)))
	}
	for _, s := range pods[:4] {
		s.add(t).ok(t)
	}
	nothing := w.unchanged(t)
	w.wantFailure(t, pods[4].add(t), codeExhausted, "no free address", w.name, "add an IPPool or remove pods")
	nothing()
	pods[0].del(t).ok(t)
	pods[4].add(t).ok(t)
}

// The API server stops between two requests of ADD and comes back later. What ADD could not undo, DEL does.
func TestAPIServerDiesDuringAdd(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"calico PUT blockaffinities", "calico POST ipamblocks", "calico POST ipamhandles", patchPod} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.newPod(t, "web")
			nothing := w.unchanged(t)
			w.proxy.setRule(dieAt(at))
			a := s.add(t)
			w.wantFailure(t, a, types.ErrTryAgainLater, "no answer from the API server", w.proxy.URL, "check that the API server runs")
			if at == patchPod {
				w.wantFailure(t, a, types.ErrTryAgainLater, "left for DEL")
			}
			if _, err := w.host.Conn.LinkByName(s.hostVeth()); !netlinkx.IsNotExist(err) {
				t.Errorf("the link is still there: %v", err)
			}
			s.del(t).ok(t) // as the runtime does at once
			s.wantJournal(t, "no answer from the API server")
			w.proxy.setRule(nil)
			s.del(t).ok(t)
			nothing()
			w.wantEmptyJournal(t)
			s.add(t).ok(t)
		})
	}
}

// The API server has put the address on the pod and its answer is lost: ADD releases the address, and DEL clears the
// annotation.
func TestLostAnswerToThePodPatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	nothing := w.unchanged(t)
	w.proxy.setRule(loseAnswer(patchPod))
	w.wantFailure(t, s.add(t), types.ErrTryAgainLater, "note the address on the pod")
	w.wantHeld(t, nil)
	w.proxy.setRule(nil)
	s.del(t).ok(t)
	s.wantAnnotations(t, "", s.container)
	nothing()
}

// DEL that cannot begin leaves the pod as it was, and succeeds when it is repeated under better conditions.
func TestDelThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	nothing := w.unchanged(t)
	added := s.add(t)
	added.ok(t)
	wired := w.unchanged(t)
	del := s.call(t, "DEL")
	withNetns := func(path string) call { c := del; c.netns = path; return c }
	for _, tt := range []struct {
		name    string
		prepare func()
		call    call
		code    uint
		words   []string
	}{
		{"no kubeconfig", func() { w.host.remove(t, kubeconfigPath) }, del, types.ErrInvalidNetworkConfig, []string{kubeconfigPath}},
		{"no nodename", func() { w.host.remove(t, nodenamePath) }, del, types.ErrTryAgainLater, []string{nodenamePath, "tortie-node"}},
		{"the node's own namespace", func() {}, withNetns("/proc/self/ns/net"), types.ErrInvalidNetNS, []string{"the node's own"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.prepare()
			w.wantFailure(t, w.host.call(t, tt.call), tt.code, tt.words...)
			w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, w.api.token))
			w.host.Write(t, nodenamePath, w.name)
			wired()
			s.check(t, added).ok(t)
		})
	}
	s.del(t).ok(t)
	nothing()
	w.wantEmptyJournal(t)
}

// An address is not free while a pod's annotations have it: a DEL that cannot clear them cleans up the kernel and does
// not release.
func TestDelThatCannotTellThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	a := address(t, s.add(t).result(t))
	w.proxy.setRule(refuse(patchPod, http.StatusConflict))
	w.wantFailure(t, s.del(t), types.ErrTryAgainLater, "note on the pod", "HTTP 409")
	w.proxy.setRule(nil)
	w.wantHeld(t, map[netip.Addr]*sandbox{a: s})
	s.wantAnnotations(t, a.String(), s.container)
	s.wantUnwired(t)
	s.del(t).ok(t)
	s.wantAnnotations(t, "", s.container)
	w.wantHeld(t, nil)
	w.wantEmptyJournal(t)
}

// A pod that others write all the time, kubelet first, is no trouble: DEL changes it without having read it.
func TestDelOfAPodThatOthersWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	s.add(t).ok(t)
	w.proxy.setRule(func(request string, rw http.ResponseWriter, r *http.Request, next http.Handler) {
		if request == patchPod {
			w.annotatePod(t, s.pod, "others/writes", "again") // what was read a moment ago would be old now
		}
		next.ServeHTTP(rw, r)
	})
	w.proxy.take()
	s.del(t).ok(t)
	s.wantAnnotations(t, "", s.container)
	patches := slices.DeleteFunc(w.proxy.take(), func(request string) bool { return request != patchPod })
	if len(patches) != 1 {
		t.Errorf("%d patches, want 1", len(patches))
	}
}

// A server that does not answer or loses packets must not hold a pod up for longer than the kubelet's two minutes. ADD
// fails after the time for one attempt to connect: further attempts, each as long, would end by the deadline of the
// whole request.
func TestSilentAPIServer(t *testing.T) {
	t.Parallel()
	listener := func(t *testing.T, w *world) string {
		silent := w.host.Listen(t)
		t.Cleanup(func() { silent.Close() })
		return silent.Addr().String()
	}
	gone := func(t *testing.T, w *world) string {
		// Nobody has the address; the kernel asks once, not three times, and so has its answer in a second.
		w.host.On(t, func() error {
			return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "neigh", "eth0", "mcast_solicit"}, "1")
		})
		return "10.250.0.1:6443"
	}
	for name, address := range map[string]func(*testing.T, *world) string{
		"accepts and is silent": listener,
		"host is down":          gone,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.newPod(t, "web")
			nothing := w.unchanged(t)
			server := "https://" + address(t, w)
			w.host.Write(t, kubeconfigPath, labtest.PluginKubeconfig(server, nil, w.api.token))
			a := s.add(t)
			w.wantFailure(t, a, types.ErrTryAgainLater, "no answer from the API server at "+server, "was silent for")
			nothing()
		})
	}
}

func TestProtocol(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	nothing := w.unchanged(t)
	good := s.call(t, "ADD")
	with := func(edit func(c *call)) call {
		c := good
		edit(&c)
		return c
	}
	version := func(v string) call {
		return with(func(c *call) { c.stdin = s.conf(t, set("cniVersion", v)) })
	}
	for _, tt := range []struct {
		name  string
		call  call
		code  uint
		words []string
	}{
		{"unknown command", with(func(c *call) { c.command = "UPDATE" }), types.ErrInvalidEnvironmentVariables,
			[]string{"CNI_COMMAND", "UPDATE"}},
		{"no container", with(func(c *call) { c.container = "" }), types.ErrInvalidEnvironmentVariables, []string{"CNI_CONTAINERID"}},
		{"nothing", with(func(c *call) { c.container, c.netns, c.ifName, c.path = "", "", "", "" }), types.ErrInvalidEnvironmentVariables,
			[]string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}},
		{"bad container", with(func(c *call) { c.container = "../x" }), types.ErrInvalidEnvironmentVariables, []string{"containerID"}},
		{"no args", with(func(c *call) { c.args = "" }), types.ErrInvalidEnvironmentVariables, []string{"CNI_ARGS", "K8S_POD_NAME"}},
		{"malformed args", with(func(c *call) { c.args = "K8S_POD_NAME" }), types.ErrInvalidEnvironmentVariables, []string{"CNI_ARGS"}},
		{"malformed JSON", with(func(c *call) { c.stdin = c.stdin[1:] }), types.ErrDecodingFailure, []string{"config"}},
		{"no input", with(func(c *call) { c.stdin = "" }), types.ErrDecodingFailure, []string{"config"}},
		{"wrong type", with(func(c *call) { c.stdin = s.conf(t, set("mtu", "1440")) }), types.ErrDecodingFailure, []string{"mtu"}},
		{"no name", with(func(c *call) { c.stdin = s.conf(t, set("name", "")) }), types.ErrInvalidNetworkConfig, []string{"name"}},
		{"newer version", version("1.2.0"), types.ErrIncompatibleCNIVersion, []string{"1.2.0", "1.1.0"}},
		{"no version", version("one"), types.ErrIncompatibleCNIVersion, []string{"one"}},
	} {
		for _, plugin := range []string{"calico", "calico-ipam"} {
			t.Run(plugin+" "+tt.name, func(t *testing.T) {
				if tt.name == "no args" && plugin == "calico-ipam" {
					return // needs no pod
				}
				tt.call.plugin = plugin
				w.wantFailure(t, w.host.call(t, tt.call), tt.code, tt.words...)
			})
		}
	}
	for plugin, about := range map[string]string{"calico": "calico", "calico-ipam": "calico-ipam"} {
		a := w.host.call(t, call{plugin: plugin}).ok(t)
		if a.stdout != "" || !strings.Contains(a.stderr, about) || !strings.Contains(a.stderr, "1.0.0") {
			t.Errorf("%s without a command prints %q and %q", plugin, a.stdout, a.stderr)
		}
	}
	if seen := w.proxy.take(); len(seen) != 0 {
		t.Errorf("the API server was asked: %v", seen)
	}
	nothing()
}
