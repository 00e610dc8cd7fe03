package plugin_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// hostVeth is the node's end of the sandbox's link.
func (s *sandbox) hostVeth() string {
	return podnet.HostVethName(podnet.DefaultVethPrefix, s.name, s.pod)
}

// wantAnnotations fails the test unless the pod carries exactly what the plugin writes for an address and a container.
func (s *sandbox) wantAnnotations(t testing.TB, address, container string) {
	t.Helper()
	if address != "" {
		address += "/32"
	}
	want := fmt.Sprintf("containerID=%s podIP=%s podIPs=%s", container, address, address)
	if got := s.podAnnotations(t, s.pod); got != want {
		t.Errorf("annotations %q, want %q", got, want)
	}
}

// wantHeld fails the test unless exactly these sandboxes hold these addresses.
func (w *world) wantHeld(t testing.TB, want map[netip.Addr]*sandbox) {
	t.Helper()
	handles := map[netip.Addr]string{}
	for a, s := range want {
		handles[a] = w.network() + "." + s.container
	}
	difftest.Want(t, "addresses held", handles, w.allocations(t))
}

func TestLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	nothing := w.unchanged(t)

	added := w.host.call(t, s.call(t, "ADD", set("log_level", "debug")))
	a := address(t, added.result(t))
	w.noSecrets(t, added)
	for line := range strings.Lines(w.host.Read(t, logPath)) { // many pods' lines are mixed in it
		if !strings.Contains(line, "container="+s.container) || !strings.Contains(line, "pod="+s.name+"/web") {
			t.Errorf("a line of the log does not say which pod it is about: %s", line)
		}
	}
	s.wantAnnotations(t, a.String(), s.container)
	w.wantHeld(t, map[netip.Addr]*sandbox{a: s})
	if mtu := w.host.Link(t, s.hostVeth()).MTU; mtu != 1440 {
		t.Errorf("MTU of the node's end is %d, want the configuration's 1440", mtu)
	}
	if out := s.check(t, added).ok(t).stdout; out != "" {
		t.Errorf("CHECK printed %q", out)
	}

	for range 2 {
		if out := s.del(t).ok(t).stdout; out != "" {
			t.Errorf("DEL printed %q", out)
		}
		s.wantAnnotations(t, "", s.container)
		w.wantHeld(t, nil)
	}
	w.api.delete(t, "Pod", w.name, "web")
	s.del(t).ok(t)
	nothing()
}

// The node's end has the name that every part of Calico computes.
func TestHostVethOfTheDefaultNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.api.create(t, manifest(t, fmt.Sprintf(
		`{apiVersion: v1, kind: Pod, metadata: {name: test-pod, namespace: default}, spec: {nodeName: %s, containers: [{name: c, image: none}]}}`,
		w.name)))
	c := w.sandbox(t, "test-pod").call(t, "ADD")
	c.args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=test-pod"
	res := w.host.call(t, c).result(t)
	w.host.Link(t, "cali7fba7a35b74")
	if got := res.Interfaces[0].Name; got != "cali7fba7a35b74" {
		t.Errorf("the result names %s", got)
	}
}

func TestAddTwiceKeepsTheAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	first := address(t, s.add(t).result(t))
	again := s.add(t)
	if second := address(t, again.result(t)); second != first {
		t.Errorf("the second ADD of the same container got %s, the first %s", second, first)
	}
	s.check(t, again).ok(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{first: s})
}

// After its sandbox died, a pod gets another one, and the runtime deletes the old one some time later.
func TestNewSandboxOfAPod(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("old namespace gone %v", gone), func(t *testing.T) {
			w := newWorld(t)
			old := w.newPod(t, "web")
			first := address(t, old.add(t).result(t))
			s := w.sandbox(t, "web")
			added := s.add(t)
			second := address(t, added.result(t))
			if first == second {
				t.Fatalf("both sandboxes have %s", first)
			}
			w.wantHeld(t, map[netip.Addr]*sandbox{first: old, second: s})

			if gone {
				w.host.forget(t, old.netns)
			}
			old.del(t).ok(t)
			w.wantHeld(t, map[netip.Addr]*sandbox{second: s})
			s.wantAnnotations(t, second.String(), s.container)
			s.check(t, added).ok(t)
		})
	}
}

// A StatefulSet's pod comes back under its name. Verbs for the old pod's sandbox must not be noted on the new one.
func TestSandboxOfAnEarlierPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.newPod(t, "web-0")
	w.api.delete(t, "Pod", w.name, "web-0")
	s := w.newPod(t, "web-0")
	a := address(t, s.add(t).result(t))
	nothing := w.unchanged(t)
	w.wantFailure(t, old.add(t), types.ErrTryAgainLater, old.uid, s.uid, "web-0", "K8S_POD_UID")
	old.del(t).ok(t)
	nothing()
	s.wantAnnotations(t, a.String(), s.container)

	unsaid := s.call(t, "ADD")
	unsaid.args = strings.Replace(unsaid.args, ";K8S_POD_UID="+s.uid, "", 1)
	w.host.call(t, unsaid).ok(t)
}

// The kubelet knows a static pod by another UID than the API server.
func TestStaticPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.createPod(t, "etcd", "kubernetes.io/config.mirror: 0123456789abcdef")
	s := w.sandbox(t, "etcd")
	s.uid = "0123456789abcdef"
	s.check(t, s.add(t).ok(t)).ok(t)
}

// A container has one link of a network. Any other interface for its ID fails. Neither the undoing of that nor a DEL
// for it touches the link, its address or its note on the pod.
func TestAnotherInterface(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	added := s.add(t)
	a := address(t, added.result(t))
	other := func(verb string) answer {
		c := s.call(t, verb)
		c.ifName = "net1"
		return w.host.call(t, c)
	}
	w.wantFailure(t, other("ADD"), types.ErrInternal, s.hostVeth(), "another interface of the same container")
	other("DEL").ok(t)
	s.wantAnnotations(t, a.String(), s.container)
	w.wantHeld(t, map[netip.Addr]*sandbox{a: s})
	s.check(t, added).ok(t)
	s.del(t).ok(t)
	s.wantAnnotations(t, "", s.container)
	w.wantHeld(t, nil)
}

// A repeated ADD that fails leaves the container what the first one assigned.
func TestAddAgainThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	added := s.add(t)
	a := address(t, added.result(t))
	for _, tt := range []struct {
		edit func(map[string]any)
		word string
	}{
		{set("mtu", 60), "wire the pod"},
		{func(map[string]any) { // it is unknown whether the handle existed before
			w.tellFacts(t, nil)
			w.proxy.setRule(loseAnswer("calico POST ipamhandles"))
		}, "POST"},
		{func(conf map[string]any) { // an error before the kernel is asked for anything
			w.proxy.setRule(nil)
			w.annotatePod(t, s.pod, "cni.projectcalico.org/floatingIPs", `["2001:db8::1"]`)
			conf["feature_control"] = map[string]any{"floating_ips": true}
		}, "floatingIPs"},
	} {
		e := w.host.call(t, s.call(t, "ADD", tt.edit)).failure(t)
		if !strings.Contains(e.Msg, tt.word) {
			t.Errorf("%q does not mention %q", e.Msg, tt.word)
		}
		w.wantHeld(t, map[netip.Addr]*sandbox{a: s})
		s.check(t, added).ok(t)
		if got := w.podAnnotations(t, s.pod); !strings.Contains(got, "podIP="+a.String()) {
			t.Errorf("annotations %q", got)
		}
	}
	s.del(t).ok(t)
	w.wantHeld(t, nil)
}

func TestDelOfWhatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nothing := w.unchanged(t)

	t.Run("unknown container", func(t *testing.T) {
		s := &sandbox{world: w, pod: "never", container: "0123456789ab", netns: "/var/run/netns/never"}
		s.del(t).ok(t)
		nothing()
	})
	// A namespace without a name leaves the node's end of the link until the kernel has removed its content.
	for name, netns := range map[string]string{"no netns": "", "netns file left": "as it was"} {
		t.Run(name, func(t *testing.T) {
			s := w.newPod(t, strings.ReplaceAll(name, " ", "-"))
			s.add(t).ok(t)
			w.host.forget(t, s.netns)
			s.ns.Conn.Close()
			s.ns.Close()
			w.pods = slices.DeleteFunc(w.pods, func(other *sandbox) bool { return other == s })
			c := s.call(t, "DEL")
			if netns == "" {
				c.netns = ""
			}
			w.host.call(t, c).ok(t)
			w.wantHeld(t, nil)
			if _, err := w.host.Conn.LinkByName(s.hostVeth()); !netlinkx.IsNotExist(err) {
				t.Errorf("the node's end is still there: %v", err)
			}
			s.wantAnnotations(t, "", s.container)
		})
	}
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cases := []struct {
		name string
		harm func(t *testing.T, s *sandbox, a netip.Prefix)
		want func(s *sandbox, a netip.Prefix) string
	}{
		{"address removed", func(t *testing.T, s *sandbox, a netip.Prefix) {
			errtest.Must(t, s.ns.Conn.DeleteAddr(s.ns.Link(t, "eth0").Index, a))
		}, func(_ *sandbox, a netip.Prefix) string { return "the pod's eth0 lacks address " + a.String() }},
		{"pod's route removed", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			errtest.Must(t, s.ns.Conn.DeleteRoute(netlinkx.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Dev: s.ns.Link(t, "eth0").Index}))
		}, func(*sandbox, netip.Prefix) string { return "the pod lacks the route to 0.0.0.0/0 through eth0" }},
		{"node's route removed", func(t *testing.T, s *sandbox, a netip.Prefix) {
			errtest.Must(t, w.host.Conn.DeleteRoute(netlinkx.Route{Dst: a, Dev: w.host.Link(t, s.hostVeth()).Index, Scope: netlinkx.ScopeLink}))
		}, func(s *sandbox, a netip.Prefix) string {
			return "the node lacks the route to " + a.String() + " through " + s.hostVeth()
		}},
		{"node's end down", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			errtest.Must(t, w.host.Conn.SetDown(w.host.Link(t, s.hostVeth()).Index))
		}, func(s *sandbox, _ netip.Prefix) string { return s.hostVeth() + " is down" }},
		{"another MTU", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			errtest.Must(t, s.ns.Conn.SetMTU(s.ns.Link(t, "eth0").Index, 1300))
		}, func(*sandbox, netip.Prefix) string { return "mtu of eth0 is 1300, want 1440" }},
		{"link removed", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			errtest.Must(t, s.ns.Conn.DeleteLink(s.ns.Link(t, "eth0").Index))
		}, func(s *sandbox, _ netip.Prefix) string { return s.hostVeth() }},
		{"another MAC", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			errtest.Must(t, s.ns.Conn.SetHardwareAddr(s.ns.Link(t, "eth0").Index, net.HardwareAddr{2, 0, 0, 0, 0, 9}))
		}, func(*sandbox, netip.Prefix) string { return "address of the pod's eth0 is 02:00:00:00:00:09, want " }},
		{"pod's gateway removed", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			s.ns.Run(t, "ip", "route", "del", "169.254.1.1")
		}, func(*sandbox, netip.Prefix) string { return "the pod lacks the route to 169.254.1.1/32 through eth0" }},
		{"node's route elsewhere", func(t *testing.T, _ *sandbox, a netip.Prefix) {
			w.host.Run(t, "ip", "route", "replace", a.String(), "dev", "eth0")
		}, func(s *sandbox, a netip.Prefix) string {
			return "the node's route to " + a.String() + " does not lead through " + s.hostVeth()
		}},
		{"parameter of the node's end", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			w.host.Within(t, func() error {
				return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "conf", s.hostVeth(), "proxy_arp"}, "0")
			})
		}, func(s *sandbox, _ netip.Prefix) string {
			return "sysctl net/ipv4/conf/" + s.hostVeth() + `/proxy_arp is "0", want "1"`
		}},
		{"parameter of the pod", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			s.ns.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
		}, func(*sandbox, netip.Prefix) string { return `sysctl net/ipv4/ip_forward is "1", want "0"` }},
		{"link of another container", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			w.host.Run(t, "ip", "link", "set", s.hostVeth(), "alias", podnet.Alias("net.other", "eth0"))
		}, func(*sandbox, netip.Prefix) string {
			return "eth0 of container other in network net) is another container's"
		}},
		{"address released", func(t *testing.T, s *sandbox, _ netip.Prefix) {
			c := s.call(t, "DEL")
			c.plugin = "calico-ipam"
			w.host.call(t, c).ok(t)
		}, func(s *sandbox, a netip.Prefix) string {
			return "handle " + s.network() + "." + s.container + " holds [], and not [" + a.Addr().String() + "]"
		}},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := w.newPod(t, fmt.Sprintf("web-%d", i))
			added := s.add(t)
			a := address(t, added.result(t))
			s.check(t, added).ok(t)
			host := netip.PrefixFrom(a, 32)
			c.harm(t, s, host)
			if e := s.check(t, added).failure(t); !strings.Contains(e.Msg, c.want(s, host)) {
				t.Errorf("CHECK says %q, want %q in it", e.Msg, c.want(s, host))
			}
		})
	}
}

// CHECK uses the result of the whole list: it ignores additions of later plugins, and refuses another pod's result.
func TestCheckReadsTheResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	added := s.add(t)
	edited := func(edit func(res *types100.Result)) answer {
		res := added.result(t)
		edit(res)
		text, err := json.Marshal(res)
		errtest.Must(t, err)
		return s.check(t, answer{stdout: string(text)})
	}
	edited(func(res *types100.Result) {
		res.Interfaces = append(res.Interfaces, &types100.Interface{Name: "net1", Sandbox: s.netns})
		res.IPs = append(res.IPs,
			&types100.IPConfig{Interface: types100.Int(2), Address: net.IPNet{IP: net.IP{192, 0, 2, 1}, Mask: net.CIDRMask(24, 32)}})
	}).ok(t)
	for want, edit := range map[string]func(*types100.Result){
		"no interface " + s.hostVeth():  func(res *types100.Result) { res.Interfaces[0].Name = "cali00000000000" },
		"mac of interface eth0":         func(res *types100.Result) { res.Interfaces[1].Mac = "mac" },
		"lacks address 10.255.255.1/32": func(res *types100.Result) { res.IPs[0].Address.IP = net.IP{10, 255, 255, 1} },
		"and not [10.255.255.1]":        func(res *types100.Result) { res.IPs[0].Address.IP = net.IP{10, 255, 255, 1} },
		"no address of interface eth0":  func(res *types100.Result) { res.IPs[0].Interface = types100.Int(0) },
	} {
		if e := edited(edit).failure(t); !strings.Contains(e.Msg, want) {
			t.Errorf("CHECK says %q, want %q in it", e.Msg, want)
		}
	}
}

// calico-ipam has a CHECK for the plugins that execute it.
func TestCheckOfIPAM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	ipam := func(command string, edits ...func(map[string]any)) answer {
		c := s.call(t, command, edits...)
		c.plugin = "calico-ipam"
		return w.host.call(t, c)
	}
	added := ipam("ADD").ok(t)
	prev := set("prevResult", json.RawMessage(added.stdout))
	if out := ipam("CHECK", prev).ok(t).stdout; out != "" {
		t.Errorf("CHECK printed %q", out)
	}
	ipam("DEL").ok(t)
	if e := ipam("CHECK", prev).failure(t); !strings.Contains(e.Msg, "holds []") {
		t.Errorf("%+v", e)
	}
}

func TestCheckNeedsAResultToCompareWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	s.add(t).ok(t)
	for name, edits := range map[string][]func(map[string]any){
		"none":       nil,
		"no address": {set("prevResult", map[string]any{"cniVersion": "1.0.0"})},
	} {
		c := s.call(t, "CHECK", edits...)
		if e := w.host.call(t, c).failure(t); e.Code != types.ErrInvalidNetworkConfig || !strings.Contains(e.Msg, "prevResult") {
			t.Errorf("%s: %+v", name, e)
		}
	}
	c := s.call(t, "CHECK", set("prevResult", map[string]any{"cniVersion": "1.0.0", "ips": "all"}))
	if e := w.host.call(t, c).failure(t); e.Code != types.ErrDecodingFailure {
		t.Errorf("malformed: %+v", e)
	}
}

// A runtime reads the result in the version of its configuration; an absent version is 0.2.0, as for Calico.
func TestEveryVersionOfTheSpecification(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, v := range []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run("version "+v, func(t *testing.T) {
			s := w.newPod(t, "v"+strings.ReplaceAll(v, ".", "-")+"x")
			c := s.call(t, "ADD", set("cniVersion", v))
			out := w.host.call(t, c).ok(t).stdout
			want := v
			if v == "" {
				want = "0.2.0"
			}
			if got, err := create.DecodeVersion([]byte(out)); err != nil || got != want {
				t.Errorf("the result is of version %q (%v), want %q: %s", got, err, want, out)
			}
			res, err := create.Create(want, []byte(out))
			errtest.Must(t, err)
			newest, err := types100.NewResultFromResult(res)
			errtest.Must(t, err)
			a := address(t, newest)
			w.wantHeld(t, map[netip.Addr]*sandbox{a: s})
			if ones, bits := newest.IPs[0].Address.Mask.Size(); ones != 32 || bits != 32 || newest.IPs[0].Gateway != nil || len(newest.Routes) != 1 {
				t.Errorf("result %s", out)
			}
			c.command = "DEL"
			w.host.call(t, c).ok(t)
		})
	}
}

func TestVersionCommand(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	want := decode(t, golden(t, "cni-version.json")).(map[string]any)
	want["supportedVersions"] = append(want["supportedVersions"].([]any), "1.1.0") // which Calico does not speak
	for _, plugin := range []string{"calico", "calico-ipam"} {
		a := h.call(t, call{plugin: plugin, command: "VERSION"}).ok(t)
		difftest.Want(t, fmt.Sprintf("VERSION of %s", plugin), any(want), decode(t, a.stdout))
		if out := h.exec(t, "/opt/cni/bin/"+plugin, nil, "", "-v").ok(t).stdout; !strings.Contains(out, plugin) {
			t.Errorf("-v says %q", out)
		}
	}
}

// calico -t asks whether the datastore may be used, and nothing else.
func TestDatastoreProbe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	probe := func(stdin string) answer { return w.host.exec(t, "/opt/cni/bin/calico", nil, stdin, "-t") }
	if out := probe(w.conf(t)).ok(t).stdout; out != "" {
		t.Errorf("success prints %q", out)
	}
	asked := []string{"calico GET clusterinformations"} // in crd.projectcalico.org/v1, where none is in a cluster of the other group
	if w.api.group == groups.V3 {
		asked = append(asked, asked...)
	}
	difftest.Want(t, "requests", asked, w.proxy.take())
	silent := w.host.Listen(t)
	defer silent.Close()
	for _, tt := range []struct {
		name, kubeconfig, stdin string
		words                   []string
	}{
		{"not allowed", kubeconfig(w.proxy, w.api.barred), w.conf(t), []string{"HTTP 403", "clusterrole tortie-cni"}},
		{"refused", labtest.PluginKubeconfig("https://127.0.0.1:1", nil, ""), w.conf(t), []string{"connection refused"}},
		{"silent", labtest.PluginKubeconfig("https://"+silent.Addr().String(), nil, ""), w.conf(t), []string{"no answer", "deadline"}},
		{"no kubeconfig", "", w.conf(t, set("kubernetes", map[string]any{"kubeconfig": "/none"})), []string{"/none"}},
		{"no configuration", "", "", []string{"network configuration"}},
	} {
		w.host.Write(t, kubeconfigPath, tt.kubeconfig)
		a := probe(tt.stdin)
		w.wantFailure(t, a, 100, tt.words...)
		if tt.name != "silent" {
			a.undelayed(t)
		}
	}
}

// TestChain has libcni execute a list in which another plugin follows, as portmap does in Calico's: that plugin gets
// the result, and CHECK and DEL get its own.
func TestChain(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(v, func(t *testing.T) {
			w := newWorld(t)
			s := w.newPod(t, "web")
			nothing := w.unchanged(t)
			cni, list, rt := libcniFor(t, s, v)
			if _, err := cni.ValidateNetworkList(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			res, err := cni.AddNetworkList(t.Context(), list, rt)
			errtest.Must(t, err)
			newest, err := types100.NewResultFromResult(res)
			errtest.Must(t, err)
			w.wantHeld(t, map[netip.Addr]*sandbox{address(t, newest): s})
			if canCheck, _ := version.GreaterThanOrEqualTo(v, "0.4.0"); canCheck {
				if err := cni.CheckNetworkList(t.Context(), list, rt); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}
			for range 2 {
				if err := cni.DelNetworkList(t.Context(), list, rt); err != nil {
					t.Errorf("DEL: %v", err)
				}
			}
			nothing()
		})
	}
}

func libcniFor(t *testing.T, s *sandbox, cniVersion string) (*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) {
	t.Helper()
	text := fmt.Sprintf(`{"name":%q,"cniVersion":%q,"plugins":[%s,{"type":"chained"}]}`, s.network(), cniVersion, s.conf(t))
	list, err := libcni.NetworkConfFromBytes([]byte(text))
	errtest.Must(t, err)
	cni := libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, t.TempDir(), &onHost{t: t, host: s.host})
	rt := &libcni.RuntimeConf{ContainerID: s.container, NetNS: s.netns, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", s.name}, {"K8S_POD_NAME", s.pod}, {"K8S_POD_INFRA_CONTAINER_ID", s.container},
	}}
	return cni, list, rt
}

// TestTraffic sends from pod to pod, to confirm what the verbs report as done.
func TestTraffic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.newPod(t, "a"), w.newPod(t, "b")
	from, to := address(t, a.add(t).result(t)), address(t, b.add(t).result(t))
	server := netip.AddrPortFrom(to, 7000).String()
	b.ns.EchoUDP(t, server)
	got, err := a.ns.AskUDP(t, "", server, "hello", 10*time.Second)
	if want := from.String() + " hello"; err != nil || got != want {
		t.Errorf("answer %q, %v; want %q", got, err, want)
	}
}

func TestPoolsOfAnnotations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	apart := strings.Replace(w.cidr, "10.", "11.", 1) // a pool within another one is masked by it
	first, second := strings.Replace(apart, "0.0/16", "1.0/24", 1), strings.Replace(apart, "0.0/16", "2.0/24", 1)
	for name, cidr := range map[string]string{"first": first, "second": second} {
		w.api.create(t, manifest(t, fmt.Sprintf(
			`{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: %s-%s}, spec: {cidr: %s, assignmentMode: Manual}}`,
			w.name, name, cidr)))
	}
	w.api.settle(t)
	w.annotateNamespace(t, "cni.projectcalico.org/ipv4pools", fmt.Sprintf(`["%s-first"]`, w.name))
	w.createPod(t, "of-namespace", "")
	w.createPod(t, "of-pod", fmt.Sprintf(`cni.projectcalico.org/ipv4pools: '["%s"]'`, second))
	for pod, want := range map[string]string{"of-namespace": first, "of-pod": second} {
		// The configuration asks for a third pool, which annotations replace.
		c := w.sandbox(t, pod).call(t, "ADD", set("ipam", map[string]any{"type": "calico-ipam", "ipv4_pools": []string{w.name}}))
		if a := address(t, w.host.call(t, c).result(t)); !netip.MustParsePrefix(want).Contains(a) {
			t.Errorf("pod %s has %s, want one of %s", pod, a, want)
		}
	}
}

// TestSettings executes ADD with the settings that the install container does not write.
func TestSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host.Write(t, mtuPath, "1350\n")
	s := w.newPod(t, "web")
	edits := []func(map[string]any){
		set("mtu", 0), set("num_queues", 2), set("container_settings", map[string]any{"allow_ip_forwarding": true}),
		set("nodename", ""), set("log_file_path", "/var/log/other.log"), set("log_level", "debug"), set("ipam_lock_file", "/run/other/lock"),
	}
	added := w.host.call(t, s.call(t, "ADD", edits...))
	res := added.result(t)
	if mtu := s.ns.Link(t, "eth0").MTU; mtu != 1350 || res.Interfaces[1].Mtu != 1350 {
		t.Errorf("MTU %d, in the result %d; want 1350 of the agent's file", mtu, res.Interfaces[1].Mtu)
	}
	if w.host.Read(t, logPath) != "" {
		t.Errorf("the default log file was written to")
	}
	check := append(edits, set("prevResult", json.RawMessage(added.stdout)))
	w.host.call(t, s.call(t, "CHECK", check...)).ok(t)
	// A later change by the agent is for later pods.
	w.host.Write(t, mtuPath, "1400\n")
	w.host.call(t, s.call(t, "CHECK", check...)).ok(t)
}

// TestNoLogFile: a pod gets its network even if the plugin cannot log.
func TestNoLogFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	a := w.host.call(t, s.call(t, "ADD", set("log_file_path", "/proc/none/cni.log"), set("ipam_lock_file", "/proc/none/lock")))
	address(t, a.result(t))
	difftest.Contains(t, a.stderr, "log_file_path", "without the host's lock")
}
