package plugin_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/plugin"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// optionCases tests, for each key of the network configuration, its effect in the real programs.
var optionCases = map[string]func(*testing.T, *world){
	"name": func(t *testing.T, w *world) {
		s := w.newPod(t, "web")
		a := address(t, s.addWith(t, "name", "Other-net.1").result(t))
		if got := w.allocations(t)[a]; got != "Other-net.1."+s.container {
			t.Errorf("handle %q", got)
		}
		w.refused(t, "name", "other_net", `"other_net"`, "IPAMHandles")
	},
	"cniVersion": func(t *testing.T, w *world) {
		out := w.newPod(t, "web").addWith(t, "cniVersion", "0.4.0").ok(t).stdout
		if !strings.Contains(out, `"cniVersion": "0.4.0"`) || !strings.Contains(out, `"version": "4"`) {
			t.Errorf("result %s", out)
		}
	},
	"type": func(t *testing.T, w *world) { w.newPod(t, "web").addWith(t, "type", "calico").ok(t) },
	"datastore_type": func(t *testing.T, w *world) {
		w.refused(t, "datastore_type", "etcd", `"etcd"`, "kubernetes or etcdv3")
		w.newPod(t, "web").addWith(t, "datastore_type", "kubernetes").ok(t)
	},
	"calico_api_group": func(t *testing.T, w *world) {
		w.refused(t, "calico_api_group", "projectcalico.org/v1", `"projectcalico.org/v1"`, "crd.projectcalico.org/v1 or projectcalico.org/v3")
		w.newPod(t, "web").addWith(t, "calico_api_group", string(w.api.group)).ok(t)
	},
	"nodename": func(t *testing.T, w *world) {
		w.host.Write(t, nodenamePath, "of-the-file")
		w.ofThisNode(t, set("nodename", w.name))
	},
	"nodename_file": func(t *testing.T, w *world) {
		w.host.remove(t, nodenamePath)
		w.host.Write(t, "/etc/name-of-node", w.name+"\n")
		w.ofThisNode(t, set("nodename_file", "/etc/name-of-node"), set("nodename", ""))
	},
	"nodename_file_optional": func(t *testing.T, w *world) {
		w.host.remove(t, nodenamePath)
		w.wantFailure(t, w.newPod(t, "refused").add(t), types.ErrTryAgainLater, nodenamePath, "tortie-node")
		w.ofThisNode(t, set("nodename_file_optional", true))
	},
	"hostname": func(t *testing.T, w *world) {
		w.host.remove(t, nodenamePath)
		a := w.ofThisNode(t, set("nodename_file_optional", true), set("nodename", ""), set("hostname", w.name))
		wantWarned(t, a, "hostname", "nodename")
	},
	"mtu": func(t *testing.T, w *world) {
		s := w.newPod(t, "web")
		s.addWith(t, "mtu", 1313).ok(t)
		if l := w.host.Link(t, s.hostVeth()); l.MTU != 1313 {
			t.Errorf("MTU %d", l.MTU)
		}
	},
	"require_mtu_file": func(t *testing.T, w *world) {
		s := w.newPod(t, "web")
		a := w.host.call(t, s.call(t, "ADD", set("mtu", 0), set("require_mtu_file", true)))
		w.wantFailure(t, a, types.ErrTryAgainLater, "require_mtu_file", mtuPath, "tortie-node")
		w.host.Write(t, mtuPath, "1377")
		w.host.call(t, s.call(t, "ADD", set("mtu", 0), set("require_mtu_file", true))).ok(t)
		if l := w.host.Link(t, s.hostVeth()); l.MTU != 1377 {
			t.Errorf("MTU %d", l.MTU)
		}
	},
	"num_queues": func(t *testing.T, w *world) {
		s := w.newPod(t, "web")
		s.addWith(t, "num_queues", 3).ok(t)
		if l := w.host.Link(t, s.hostVeth()); l.TxQueues != 3 || l.RxQueues != 3 {
			t.Errorf("%d, %d queues", l.TxQueues, l.RxQueues)
		}
	},
	"device_type": func(t *testing.T, w *world) {
		w.refused(t, "device_type", "ipvlan", `"ipvlan"`, "veth or netkit")
		s := w.newPod(t, "web")
		s.addWith(t, "device_type", "netkit").ok(t) // a kernel without it gets a veth
		if kind := w.host.Link(t, s.hostVeth()).Kind; kind != "netkit" && kind != "veth" {
			t.Errorf("kind %s", kind)
		}
		s.del(t).ok(t)
		s.addWith(t, "device_type", "veth").ok(t)
		if kind := w.host.Link(t, s.hostVeth()).Kind; kind != "veth" {
			t.Errorf("kind %s", kind)
		}
	},
	"log_level": func(t *testing.T, w *world) {
		for level, want := range map[string]bool{"error": false, "info": true, "INFO": true, "unknown": true} {
			s := w.newPod(t, "web-"+strings.ToLower(level)+fmt.Sprint(len(w.pods)))
			if a := s.addWith(t, "log_level", level).ok(t); strings.Contains(a.stderr, "level=INFO") != want {
				t.Errorf("log_level %s: %s", level, a.stderr)
			}
		}
	},
	"log_file_path": func(t *testing.T, w *world) {
		w.newPod(t, "web").addWith(t, "log_file_path", "/var/log/new/dir/x.log").ok(t)
		if text := w.host.Read(t, "/var/log/new/dir/x.log"); !strings.Contains(text, "pod="+w.name+"/web") {
			t.Errorf("log file: %s", text)
		}
	},
	"log_file_max_size": func(t *testing.T, w *world) {
		if logs := w.rotated(t, "log_file_max_size", 2); logs != 1 {
			t.Errorf("a log file of 1 MB, with a limit of 2: %d files", logs)
		}
		if logs := w.rotated(t, "log_file_max_size", 1); logs != 2 {
			t.Errorf("a log file of 1 MB, with a limit of 1: %d files", logs)
		}
	},
	"log_file_max_age":   func(t *testing.T, w *world) { w.cleared(t, "log_file_max_age") },
	"log_file_max_count": func(t *testing.T, w *world) { w.cleared(t, "log_file_max_count") },
	"ipam.type": func(t *testing.T, w *world) {
		w.refused(t, "ipam.type", "", "is empty", "calico-ipam")
		w.refused(t, "ipam.type", "no-such-plugin", `"no-such-plugin"`, "install it there")
	},
	"ipam.assign_ipv4": func(t *testing.T, w *world) {
		w.createPool6(t)
		wantFamilies(t, w.newPod(t, "web").addWith(t, "ipam.assign_ipv4", "false", "ipam.assign_ipv6", "true"), 0, 1)
		wantFamilies(t, w.newPod(t, "web2").addWith(t, "ipam.assign_ipv4", "true"), 1, 0)
	},
	"ipam.assign_ipv6": func(t *testing.T, w *world) {
		w.createPool6(t)
		wantFamilies(t, w.newPod(t, "web").addWith(t, "ipam.assign_ipv6", "true"), 1, 1)
		wantFamilies(t, w.newPod(t, "web2").addWith(t, "ipam.assign_ipv6", "yes"), 1, 0)
	},
	"ipam.ipv4_pools": func(t *testing.T, w *world) {
		other := strings.Replace(w.cidr, "10.", "11.", 1)
		w.createNamedPool(t, w.name+"-other", other)
		w.fromPool(t, other, "ipam.ipv4_pools", []string{w.name + "-other"})
		w.fromPool(t, w.cidr, "ipam.ipv4_pools", []string{w.cidr})
	},
	"ipam.ipv6_pools": func(t *testing.T, w *world) {
		w.createPool6(t)
		w.createNamedPool(t, w.name+"-other6", w.cidr6("fd11"))
		w.fromPool(t, w.cidr6("fd11"), "ipam.ipv6_pools", []string{w.cidr6("fd11")}, "ipam.assign_ipv4", "false", "ipam.assign_ipv6", "true")
	},
	"ipam.subnet":            podCIDROfSubnet,
	"ipam.ranges":            podCIDROfRanges,
	"ipam.routes":            customRoutes,
	"include_default_routes": defaultRouteToo,
	"kubernetes.node_name":   podCIDROfAnotherName,
	"ipam_lock_file": func(t *testing.T, w *world) {
		w.newPod(t, "web").addWith(t, "ipam_lock_file", "/run/elsewhere/lock").ok(t)
		w.host.On(t, func() error { _, err := os.Stat("/run/elsewhere/lock"); return err })
	},
	"qps":   func(t *testing.T, w *world) { w.newPod(t, "web").addWith(t, "qps", 0.5).ok(t) },
	"burst": func(t *testing.T, w *world) { w.newPod(t, "web").addWith(t, "burst", 1).ok(t) },
	"policy.type": func(t *testing.T, w *world) {
		w.refused(t, "policy.type", "x", `"x"`, "use k8s")
		w.createPool6(t)
		w.createPod(t, "web", `cni.projectcalico.org/ipFamilies: '["IPv6"]'`)
		wantFamilies(t, w.sandbox(t, "web").addWith(t, "policy.type", ""), 1, 0) // annotations do not count
		wantFamilies(t, w.sandbox(t, "web").addWith(t, "policy.type", "k8s"), 0, 1)
	},
	"policy.k8s_api_root": func(t *testing.T, w *world) {
		w.host.Write(t, kubeconfigPath, w.kubeconfigWith(t, "https://127.0.0.1:1", w.api.token))
		wantWarned(t, w.newPod(t, "web").addWith(t, "policy.k8s_api_root", w.proxy.URL+"/api/v1/").ok(t), "policy.k8s_api_root",
			"kubernetes.k8s_api_root")
	},
	"policy.k8s_auth_token": func(t *testing.T, w *world) {
		w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, wrongToken))
		a := w.newPod(t, "web").addWith(t, "policy.k8s_auth_token", w.api.token).ok(t)
		wantWarned(t, a, "policy.k8s_auth_token", "kubernetes.kubeconfig")
		w.noSecrets(t, a)
	},
	"policy.k8s_client_certificate": clientCertificate,
	"policy.k8s_client_key":         clientCertificate,
	"policy.k8s_certificate_authority": func(t *testing.T, w *world) {
		w.host.Write(t, kubeconfigPath, labtest.PluginKubeconfig(w.proxy.URL, nil, w.api.token))
		w.host.Write(t, "/etc/ca.pem", w.proxyCA())
		wantWarned(t, w.newPod(t, "web").addWith(t, "policy.k8s_certificate_authority", "/etc/ca.pem").ok(t),
			"policy.k8s_certificate_authority", "kubernetes.kubeconfig")
	},
	"kubernetes.kubeconfig": func(t *testing.T, w *world) {
		w.host.Write(t, "/etc/other-kubeconfig", w.host.Read(t, kubeconfigPath))
		w.host.remove(t, kubeconfigPath)
		w.newPod(t, "web").addWith(t, "kubernetes.kubeconfig", "/etc/other-kubeconfig").ok(t)
	},
	"kubernetes.k8s_api_root": func(t *testing.T, w *world) {
		w.host.Write(t, kubeconfigPath, w.kubeconfigWith(t, "https://127.0.0.1:1", w.api.token))
		w.newPod(t, "web").addWith(t, "kubernetes.k8s_api_root", w.proxy.URL, "policy.k8s_api_root", "https://127.0.0.1:2").ok(t)
		w.host.Write(t, "/etc/ca.pem", w.proxyCA())
		w.newPod(t, "bare").addWith(t, "kubernetes", map[string]any{"k8s_api_root": w.proxy.URL},
			"policy.k8s_auth_token", w.api.token, "policy.k8s_certificate_authority", "/etc/ca.pem").ok(t)
	},
	"feature_control.ip_addrs_no_ipam": func(t *testing.T, w *world) {
		w.createPod(t, "web", `cni.projectcalico.org/ipAddrsNoIpam: '["192.0.2.9"]'`)
		s := w.sandbox(t, "web")
		w.wantFailure(t, s.add(t), types.ErrInvalidNetworkConfig, "ipAddrsNoIpam", w.name+"/web", "192.0.2.9", "feature_control.ip_addrs_no_ipam")
		if a := address(t, s.addWith(t, "feature_control.ip_addrs_no_ipam", true).result(t)); a.String() != "192.0.2.9" {
			t.Errorf("address %s", a)
		}
	},
	"feature_control.floating_ips": func(t *testing.T, w *world) {
		s := w.floating(t, "web", w.fixed("9.9"))
		w.wantFailure(t, s.add(t), types.ErrInvalidNetworkConfig, "floatingIPs", w.name+"/web", w.fixed("9.9"), "feature_control.floating_ips")
		s.float(t).ok(t)
	},
	"container_settings.allow_ip_forwarding": func(t *testing.T, w *world) {
		s := w.newPod(t, "web")
		s.addWith(t, "container_settings.allow_ip_forwarding", true).ok(t)
		if got := strings.TrimSpace(s.ns.Run(t, "cat", "/proc/sys/net/ipv4/ip_forward")); got != "1" {
			t.Errorf("ip_forward %s", got)
		}
	},
	"readiness_gates": func(t *testing.T, w *world) {
		var asked atomic.Int32
		server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) < 3 {
				rw.WriteHeader(http.StatusServiceUnavailable)
			}
		})}
		l := w.host.Listen(t)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { server.Close() })
		w.newPod(t, "web").addWith(t, "readiness_gates", []string{"http://" + l.Addr().String() + "/ready"}).ok(t)
		if n := asked.Load(); n != 3 {
			t.Errorf("the gate was asked %d times, want until it opened the third time", n)
		}
	},
	"policy_setup_timeout_seconds": func(t *testing.T, w *world) {
		a := w.newPod(t, "web").addWith(t, "policy_setup_timeout_seconds", 1).ok(t)
		difftest.Contains(t, a.stderr, "policy_setup_timeout_seconds=1")
	},
	"policy_enforced": func(t *testing.T, w *world) {
		w.newPod(t, "open").addWith(t, "policy_enforced", false).ok(t)
		if tables := w.host.Run(t, "nft", "list", "tables"); strings.Contains(tables, netpol.TableName) {
			t.Errorf("tables: %s", tables)
		}
		w.newPod(t, "closed").addWith(t, "policy_enforced", true).ok(t)
		if table := w.host.Run(t, "nft", "list", "table", "inet", netpol.TableName); !strings.Contains(table, "hook forward") {
			t.Errorf("table: %s", table)
		}
	},
	"endpoint_status_dir": func(t *testing.T, w *world) {
		w.host.Write(t, "/run/felix/k8s "+w.name+"%2Fweb eth0", "{}")
		a := w.newPod(t, "web").addWith(t, "policy_setup_timeout_seconds", 60, "endpoint_status_dir", "/run/felix").ok(t)
		if strings.Contains(a.stderr, "WARN") {
			t.Errorf("it waited for the file until the time was over: %s", a.stderr)
		}
	},
	"dataplane_options.type": func(t *testing.T, w *world) {
		w.refused(t, "dataplane_options.type", "grpc", `"grpc"`, "remove the key")
	},
	"etcd_endpoints": func(t *testing.T, w *world) { w.refused(t, "etcd_endpoints", "", "is empty", "ETCD_ENDPOINTS", etcd) },
	"etcd_discovery_srv": func(t *testing.T, w *world) {
		w.refused(t, "etcd_discovery_srv", "example.org", `"example.org"`, "remove one of them", etcd, endpoints)
	},
	"etcd_cert_file": func(t *testing.T, w *world) {
		w.refused(t, "etcd_cert_file", "/c", `"/c"`, "both or neither", etcd, endpoints)
	},
	"etcd_key_file": func(t *testing.T, w *world) {
		w.refused(t, "etcd_key_file", "/k", "etcd_cert_file", "both or neither", etcd, endpoints)
	},
	"etcd_ca_cert_file": func(t *testing.T, w *world) {
		w.refused(t, "etcd_ca_cert_file", "/none/ca", "/none/ca", etcd, endpoints)
	},
	"etcd_authority": func(t *testing.T, w *world) {
		c := w.newPod(t, "web").callWith(t, "etcd_authority", "127.0.0.1:1", "datastore_type", "etcdv3", "readiness_gates", []string{"none"})
		w.wantFailure(t, w.host.call(t, c), types.ErrInvalidNetworkConfig, "readiness_gates") // past the rules for etcd_endpoints
	},
	"etcd_scheme": func(t *testing.T, w *world) {
		wantWarned(t, w.newPod(t, "web").addWith(t, "etcd_scheme", "https").ok(t), "etcd_scheme", "etcd_endpoints")
	},
}

func TestEveryOption(t *testing.T) {
	t.Parallel()
	options := plugin.Options()
	for _, o := range options {
		do, ok := optionCases[o.Key]
		if !ok {
			t.Errorf("no test shows what %s does", o.Key)
			continue
		}
		t.Run(o.Key, func(t *testing.T) {
			t.Parallel()
			do(t, newWorld(t))
		})
	}
	if len(options) != len(optionCases) {
		t.Errorf("%d keys and %d tests", len(options), len(optionCases))
	}
}

// Edits of a refused call, passed among the words.
const (
	etcd      = "with datastore_type etcdv3"
	endpoints = "with etcd_endpoints"
)

// refused fails the test unless ADD refuses a value, in an error with the key and the words, and changes nothing.
func (w *world) refused(t *testing.T, key string, value any, words ...string) {
	t.Helper()
	s := w.newPod(t, fmt.Sprintf("refused-%d", len(w.pods)))
	pairs := []any{key, value}
	if words[len(words)-1] == endpoints {
		pairs, words = append(pairs, "etcd_endpoints", "https://127.0.0.1:1"), words[:len(words)-1]
	}
	if words[len(words)-1] == etcd {
		pairs, words = append(pairs, "datastore_type", "etcdv3"), words[:len(words)-1]
	} else {
		words = append(words, key)
	}
	nothing := w.unchanged(t)
	w.wantFailure(t, w.host.call(t, s.callWith(t, pairs...)), types.ErrInvalidNetworkConfig, words...)
	nothing()
}

// callWith returns an ADD with other values in its configuration: keys, with a dot for each level, and their values.
func (s *sandbox) callWith(t testing.TB, pairs ...any) call {
	t.Helper()
	var edits []func(map[string]any)
	for i := 0; i < len(pairs); i += 2 {
		edits = append(edits, func(conf map[string]any) { setDeep(conf, pairs[i].(string), pairs[i+1]) })
	}
	return s.call(t, "ADD", edits...)
}

func setDeep(conf map[string]any, key string, value any) {
	first, rest, deep := strings.Cut(key, ".")
	if !deep {
		conf[key] = value
		return
	}
	below, ok := conf[first].(map[string]any)
	if !ok {
		below = map[string]any{}
		conf[first] = below
	}
	setDeep(below, rest, value)
}

func (s *sandbox) addWith(t testing.TB, pairs ...any) answer {
	t.Helper()
	return s.host.call(t, s.callWith(t, pairs...))
}

// ofThisNode fails the test unless ADD knows the node's name.
func (w *world) ofThisNode(t *testing.T, edits ...func(map[string]any)) answer {
	t.Helper()
	a := w.host.call(t, w.newPod(t, "web").call(t, "ADD", edits...)).ok(t)
	if claimed := w.affinities(t); len(claimed) != 1 {
		t.Errorf("blocks of node %s: %v", w.name, claimed)
	}
	return a
}

// wantWarned fails the test unless exactly one line of the log warns of a deprecated key.
func wantWarned(t *testing.T, a answer, key, instead string) {
	t.Helper()
	want := "key=" + key + " instead=" + instead + "\n"
	if n := strings.Count(a.stderr, want); n != 1 {
		t.Errorf("%d lines warn of %s: %s", n, key, a.stderr)
	}
}

func wantFamilies(t *testing.T, a answer, v4, v6 int) {
	t.Helper()
	got := map[bool]int{}
	for _, ip := range a.result(t).IPs {
		got[ip.Address.IP.To4() != nil]++
	}
	if got[true] != v4 || got[false] != v6 {
		t.Errorf("%d IPv4 and %d IPv6 addresses, want %d and %d: %s", got[true], got[false], v4, v6, a.stdout)
	}
}

func (w *world) createNamedPool(t *testing.T, name, cidr string) {
	t.Helper()
	w.api.create(t, manifest(t, fmt.Sprintf(
		`{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: %s}, spec: {cidr: %s, nodeSelector: "world == '%s'"}}`,
		name, cidr, w.name)))
	w.api.settle(t)
}

// cidr6 is a range of IPv6 for this world alone.
func (w *world) cidr6(prefix string) string {
	return fmt.Sprintf("%s:%x::/48", prefix, netip.MustParsePrefix(w.cidr).Addr().As4()[1])
}

func (w *world) createPool6(t *testing.T) {
	t.Helper()
	w.createNamedPool(t, w.name+"-6", w.cidr6("fd10"))
}

// fromPool fails the test unless ADD assigns an address of a range.
func (w *world) fromPool(t *testing.T, cidr string, pairs ...any) {
	t.Helper()
	a := address(t, w.newPod(t, fmt.Sprintf("web-%d", len(w.pods))).addWith(t, pairs...).result(t))
	if !netip.MustParsePrefix(cidr).Contains(a) {
		t.Errorf("%v: %s is not of %s", pairs, a, cidr)
	}
}

const megabyte = 1 << 20

// rotated has ADD write to a log file of a megabyte, and counts the files then.
func (w *world) rotated(t *testing.T, pairs ...any) int {
	t.Helper()
	w.host.Write(t, "/var/log/big/cni.log", strings.Repeat("x", megabyte-1)+"\n")
	w.newPod(t, fmt.Sprintf("web-%d", len(w.pods))).addWith(t, append(pairs, "log_file_path", "/var/log/big/cni.log")...).ok(t)
	return len(w.host.list(t, "/var/log/big"))
}

// cleared fails the test unless rotating a log file removes an old one because of the key's limit of 1. Files are
// removed beside the work of the plugin, which may end earlier: then the next rotation does it.
func (w *world) cleared(t *testing.T, key string) {
	t.Helper()
	const old, older = "/var/log/big/cni-2001-01-01T00-00-00.000.log", "/var/log/big/cni-2000-01-01T00-00-00.000.log"
	w.host.Write(t, old, "old\n")
	w.host.Write(t, older, "older\n")
	for range 20 {
		w.rotated(t, key, 1, "log_file_max_size", 1)
		if files := w.host.list(t, "/var/log/big"); !strings.Contains(strings.Join(files, " "), filepath.Base(older)) {
			return
		}
	}
	t.Errorf("with %s 1 there are %v", key, w.host.list(t, "/var/log/big"))
}

// list returns the names of a directory's files.
func (h *host) list(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	h.On(t, func() error {
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return err
	})
	return names
}

// kubeconfigWith is the world's, with another server.
func (w *world) kubeconfigWith(t *testing.T, server, token string) string {
	t.Helper()
	return strings.Replace(kubeconfig(w.proxy, token), fmt.Sprintf("%q", w.proxy.URL), fmt.Sprintf("%q", server), 1)
}

func (w *world) proxyCA() string { return certPEM(w.proxy.Certificate().Raw) }

// clientCertificate: both files are read, and a pair that is none is refused before anything is done.
func clientCertificate(t *testing.T, w *world) {
	cert, key := selfSigned(t)
	w.host.Write(t, "/etc/client.pem", cert)
	w.host.Write(t, "/etc/client.key", key)
	a := w.newPod(t, "web").addWith(t, "policy.k8s_client_certificate", "/etc/client.pem", "policy.k8s_client_key", "/etc/client.key").ok(t)
	wantWarned(t, a, "policy.k8s_client_certificate", "kubernetes.kubeconfig")
	wantWarned(t, a, "policy.k8s_client_key", "kubernetes.kubeconfig")
	if bytes.Contains([]byte(a.stderr+w.host.Read(t, logPath)), []byte("PRIVATE KEY")) {
		t.Error("the key is in the log")
	}
	s := w.newPod(t, "refused")
	nothing := w.unchanged(t)
	w.wantFailure(t, s.addWith(t, "policy.k8s_client_certificate", "/etc/none.pem", "policy.k8s_client_key", "/etc/client.key"),
		types.ErrInvalidNetworkConfig, "/etc/none.pem", "client certificate")
	w.wantFailure(t, s.addWith(t, "policy.k8s_client_certificate", "/etc/client.key", "policy.k8s_client_key", "/etc/client.pem"),
		types.ErrInvalidNetworkConfig, "client-certificate")
	w.wantFailure(t, s.addWith(t, "policy.k8s_client_key", "/etc/client.key"), types.ErrInvalidNetworkConfig,
		"k8s_client_certificate", "both or neither")
	nothing()
}

// routesOf lists the destinations that a pod reaches through its gateway by IPv4.
func routesOf(t *testing.T, s *sandbox) []string {
	t.Helper()
	routes, err := s.ns.Conn.Routes(netlinkx.RouteFilter{Family: netlinkx.IPv4})
	errtest.Must(t, err)
	var dsts []string
	for _, r := range routes {
		if r.Via.IsValid() {
			dsts = append(dsts, r.Dst.String())
		}
	}
	return dsts
}

// The variables of the environment reach the real program; what each does is in TestEveryVariable.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host.Write(t, "/etc/env-kubeconfig", w.host.Read(t, kubeconfigPath))
	w.host.remove(t, kubeconfigPath)
	s := w.newPod(t, "web")
	c := s.callWith(t, "kubernetes", map[string]any{})
	nothing := w.unchanged(t)
	w.wantFailure(t, w.host.exec(t, "/opt/cni/bin/calico", c.env(), c.stdin), types.ErrInvalidNetworkConfig,
		kubeconfigPath, "kubernetes.kubeconfig")
	env := append(c.env(), "CALICO_KUBECONFIG=/etc/env-kubeconfig", "KUBECONFIG=/none", "FELIX_INTERFACEPREFIX=tap,cali")
	address(t, w.host.exec(t, "/opt/cni/bin/calico", env, c.stdin).result(t))
	if name := "tap" + strings.TrimPrefix(s.hostVeth(), "cali"); w.host.Link(t, name).Kind != "veth" {
		t.Errorf("no link %s", name)
	}
	env[0] = "CNI_COMMAND=DEL"
	w.host.exec(t, "/opt/cni/bin/calico", env, c.stdin).ok(t)
	nothing()
	a := w.host.exec(t, "/opt/cni/bin/calico", append(c.env(), "K8S_CLIENT_QPS=fast", "FELIX_INTERFACEPREFIX=toolong"), c.stdin)
	w.wantFailure(t, a, types.ErrInvalidEnvironmentVariables, "K8S_CLIENT_QPS", `"fast"`, "FELIX_INTERFACEPREFIX", `"toolong"`)
}

// argumentCases shows what each key of CNI_ARGS does.
var argumentCases = map[string]func(*testing.T, *sandbox, call){
	"K8S_POD_NAMESPACE": func(t *testing.T, s *sandbox, c call) {
		c.args = "K8S_POD_NAME=web"
		s.wantFailure(t, s.host.call(t, c), types.ErrInvalidEnvironmentVariables, "K8S_POD_NAMESPACE", "missing")
	},
	"K8S_POD_NAME": func(t *testing.T, s *sandbox, c call) {
		c.args = "K8S_POD_NAMESPACE=" + s.name
		s.wantFailure(t, s.host.call(t, c), types.ErrInvalidEnvironmentVariables, "K8S_POD_NAME", "missing")
	},
	"K8S_POD_INFRA_CONTAINER_ID": func(t *testing.T, s *sandbox, c call) {
		c.args = fmt.Sprintf("K8S_POD_NAMESPACE=%s;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=other", s.name)
		a := address(t, s.host.call(t, c).result(t))
		s.wantHeld(t, map[netip.Addr]*sandbox{a: s})
	},
	"K8S_POD_UID": func(t *testing.T, s *sandbox, c call) {
		c.args = fmt.Sprintf("K8S_POD_NAMESPACE=%s;K8S_POD_NAME=web;K8S_POD_UID=of-another-pod", s.name)
		s.wantFailure(t, s.host.call(t, c), types.ErrTryAgainLater, "K8S_POD_UID of-another-pod", s.name+"/web")
	},
	"IP": func(t *testing.T, s *sandbox, c call) {
		want := strings.Replace(s.cidr, "0.0/16", "7.7", 1)
		c.args += ";IP=" + want
		if a := address(t, s.host.call(t, c).result(t)); a.String() != want {
			t.Errorf("address %s, want %s", a, want)
		}
		c.args += "/26"
		s.wantFailure(t, s.host.call(t, c), types.ErrInvalidEnvironmentVariables, "IP", want+"/26")
	},
}

func TestEveryArgument(t *testing.T) {
	t.Parallel()
	arguments := plugin.Arguments()
	for _, arg := range arguments {
		do, ok := argumentCases[arg.Key]
		if !ok {
			t.Errorf("no test shows what %s does", arg.Key)
			continue
		}
		t.Run(arg.Key, func(t *testing.T) {
			t.Parallel()
			s := newWorld(t).newPod(t, "web")
			c := s.call(t, "ADD")
			c.args = fmt.Sprintf("K8S_POD_NAMESPACE=%s;K8S_POD_NAME=web", s.name)
			do(t, s, c)
		})
	}
	if len(arguments) != len(argumentCases) {
		t.Errorf("%d arguments and %d tests", len(arguments), len(argumentCases))
	}
}
