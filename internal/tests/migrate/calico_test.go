package migrate

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// programs replace Calico's plugins: they write the same formats, which other tests compare with files of a real
// Calico.
var programs = cnitest.NewPrograms("./cmd/calico", "./cmd/calico-ipam", "github.com/containernetworking/plugins/plugins/meta/portmap",
	"github.com/containernetworking/plugins/plugins/meta/bandwidth", "github.com/containernetworking/plugins/plugins/main/loopback")

// nodes are the lab's nodes, with their blocks in testdata/datastore.yaml.
var nodes = []struct{ name, block string }{{"master", "192.168.154.0/26"}, {"node1", "192.168.9.64/26"}}

// restartTime is for how long a node's routes are kept by the others while it changes over, as datastore.yaml has it
// too: the default of 120 s is for machines on which pods start within seconds.
const restartTime = 15 * time.Minute

// world is a lab with its workloads.
type world struct {
	*labtest.Lab
	t *testing.T
}

func newWorld(t *testing.T, count int) *world {
	t.Helper()
	w := &world{labtest.NewLab(t, count, "-image", labtest.Image(t)), t}
	t.Cleanup(func() {
		w.LogDiagnostics(t,
			[]string{"kubectl", "-n", "kube-system", "logs", "-l", "k8s-app=calico-node", "--all-containers", "--prefix", "--tail=20"})
	})
	return w
}

// copy copies a file of this machine to a node.
func (w *world) copy(node, path, from string) {
	w.t.Helper()
	text, err := os.ReadFile(from)
	errtest.Must(w.t, err)
	w.Put(w.t, node, path, 0o755, text)
}

// apply creates the objects of a file of testdata after replacements, in the form of the lab's API group.
func (w *world) apply(file string, replaced ...string) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	errtest.Must(w.t, err)
	var all []byte
	for _, one := range strings.Split(strings.NewReplacer(replaced...).Replace(string(text)), "\n---\n") {
		all = append(all, "---\n"...)
		all = append(all, inGroup(w.t, one)...)
	}
	to := filepath.Join(w.t.TempDir(), file)
	errtest.Must(w.t, os.WriteFile(to, all, 0o600))
	w.Kubectl(w.t, "create", "-f", to)
}

// finalizers are what Calico's controllers set in projectcalico.org/v3.
var finalizers = map[string]string{"IPPool": "projectcalico.org/ippool-finalizer", "Tier": "projectcalico.org/tier-controller"}

// inGroup returns an object of testdata, which is of crd.projectcalico.org/v1, as a Calico of the lab's group has it.
func inGroup(t *testing.T, text string) []byte {
	t.Helper()
	obj := &unstructured.Unstructured{}
	errtest.Must(t, yaml.Unmarshal([]byte(text), &obj.Object))
	if obj.GetAPIVersion() != string(groups.V1) {
		return []byte(text + "\n")
	}
	labtest.InGroup(t, obj)
	if labtest.Group(t) == groups.V3 {
		if f := finalizers[obj.GetKind()]; f != "" {
			obj.SetFinalizers([]string{f})
		}
		obj.SetName(strings.TrimPrefix(obj.GetName(), "default.")) // as Calico stores policies since 3.32
	}
	out, err := yaml.Marshal(obj.Object)
	errtest.Must(t, err)
	return out
}

func (w *world) address(node string) netip.Addr {
	w.t.Helper()
	text := w.Kubectl(w.t, "get", "node", node, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	return netip.MustParseAddr(text)
}

// calico installs the state of Calico: its objects, its DaemonSet, which runs BIRD, and its files on each node.
func (w *world) calico() {
	w.t.Helper()
	w.Kubectl(w.t, "apply", "--server-side", "-f", labtest.DefinitionsDir(labtest.Group(w.t)))
	w.Kubectl(w.t, "wait", "--for=condition=Established", "crd", "--all")
	w.apply("datastore.yaml", "NODE1", nodes[0].name, "NODE2", nodes[1].name,
		"HASH1", names.HostnameHash(nodes[0].name), "HASH2", names.HostnameHash(nodes[1].name))
	cache, err := os.UserCacheDir()
	errtest.Must(w.t, err)
	for i, n := range nodes {
		self := &bgptest.Host{T: w.t, V4: w.address(n.name)}
		w.Kubectl(w.t, "annotate", "node", n.name, "projectcalico.org/IPv4Address="+self.V4.String()+"/24")
		config := bgptest.Config{ASN: 64512, Announce: []netip.Prefix{netip.MustParsePrefix(n.block)}, RestartTime: restartTime}
		peer := w.address(nodes[1-i].name)
		config.Sessions = []bgptest.Session{{Peer: peer, ASN: 64512, Passive: peer.String() > self.V4.String()}}
		w.Put(w.t, n.name, "/opt/calico/bird.conf", 0o644, []byte(self.BirdText(bgptest.BIRD1, config, "ipv4")))
		for _, program := range []string{"bird", "birdc"} {
			w.copy(n.name, "/opt/calico/"+program, filepath.Join(cache, "tortie/bird-1.6/usr/sbin", program))
		}
		w.copy(n.name, "/opt/calico/install-cni.sh", "testdata/install-cni.sh")
		for _, program := range []string{"calico", "calico-ipam", "portmap", "bandwidth", "loopback"} {
			w.copy(n.name, "/opt/calico/cni/"+program, filepath.Join(programs.Dir(w.t), program))
		}
		w.On(w.t, n.name, "sysctl -qw net.ipv4.ip_forward=1")
	}
	set := string(labtest.Group(w.t))
	if set == string(groups.V1) {
		set = "" // as Calico's operator leaves it
	}
	w.apply("calico-node.yaml", "SET_GROUP", set)
	w.Kubectl(w.t, "-n", "kube-system", "rollout", "status", "daemonset/calico-node", "--timeout=5m")
	w.Kubectl(w.t, "wait", "node", "--all", "--for=condition=Ready", "--timeout=5m")
}

// pod starts a pod on a node, and opens its network namespace once it runs.
func (w *world) pod(name, node string) *pod {
	w.t.Helper()
	w.StartPod(w.t, name, node)
	p := &pod{world: w, name: name, before: w.facts(name)}
	uid, address := w.Kubectl(w.t, "get", "pod", name, "-o", "jsonpath={.metadata.uid}"), w.Kubectl(w.t, "get", "pod", name, "-o",
		"jsonpath={.status.podIP}")
	p.Pod = &meshtest.Pod{NS: w.Lab.Pod(w.t, uid), V4: netip.MustParseAddr(address)}
	p.link = p.Run(w.t, "ip", "-o", "link", "show", "eth0")
	return p
}

// pod is a pod that existed before the migration.
type pod struct {
	*meshtest.Pod
	world        *world
	name         string
	before, link string
}

// facts returns the properties of a running pod that must not change.
func (w *world) facts(name string) string {
	w.t.Helper()
	return w.Kubectl(w.t, "get", "pod", name, "-o",
		"jsonpath={.metadata.uid} {.status.podIP} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}")
}

// same fails the test if the pod has changed.
func (p *pod) same() {
	p.world.t.Helper()
	if now := p.world.facts(p.name); now != p.before {
		p.world.t.Errorf("pod %s is %s, and was %s", p.name, now, p.before)
	}
	if now := p.Run(p.world.t, "ip", "-o", "link", "show", "eth0"); now != p.link {
		p.world.t.Errorf("pod %s has the link %s, and had %s", p.name, now, p.link)
	}
}

// felix writes Felix's rules for the existing pods to a node, and puts them in force: packets of other pods are
// dropped, and those to the pods of the policy that are not from one of them. A Calico that comes back puts them in
// force again.
func (w *world) felix(node string, rules func(links []string, policed []*pod) string, policed ...*pod) {
	w.t.Helper()
	links := strings.Fields(w.On(w.t, node, `ip -o link show | sed -n 's/^[0-9]*: \(cali[^@:]*\)[@:].*/\1/p'`))
	for _, l := range links {
		w.On(w.t, node, fmt.Sprintf("ip link set dev %s alias ''", l)) // as created by Calico
	}
	w.Put(w.t, node, "/opt/calico/felix.sh", 0o755, []byte(rules(links, policed)))
	w.On(w.t, node, "sh -e /opt/calico/felix.sh")
}

// policyChain is where the emulated Felix denies, in its own table after "filter-".
const policyChain = "cali-pi-policy"

// felixNFTables returns a script that makes Felix's rules in its mode of nftables.
func felixNFTables(links []string, policed []*pod) string {
	var from, to, known []string
	for _, l := range links {
		from = append(from, fmt.Sprintf("iifname %q return", l))
		to = append(to, fmt.Sprintf("oifname %q return", l))
	}
	for _, p := range policed {
		to = slices.Insert(to, 0, fmt.Sprintf("oifname %q goto filter-%s", p.hostLink(), policyChain))
		known = append(known, p.V4.String())
	}
	return fmt.Sprintf(`nft -f - <<END
table ip calico {}
delete table ip calico
table ip calico {
	chain filter-%s { ip saddr { %s } return; drop; }
	chain filter-cali-from-wl-dispatch { %s; drop; }
	chain filter-cali-to-wl-dispatch { %s; drop; }
	chain filter-FORWARD { type filter hook forward priority 0; policy accept; iifname "cali*" jump filter-cali-from-wl-dispatch;
		oifname "cali*" jump filter-cali-to-wl-dispatch; }
}
END
`, policyChain, strings.Join(known, ", "), strings.Join(from, "; "), strings.Join(to, "; "))
}

// felixIPTables is felixNFTables in its mode of iptables.
func felixIPTables(links []string, policed []*pod) string {
	rules := []string{"*filter", ":cali-FORWARD - [0:0]", ":cali-from-wl-dispatch - [0:0]", ":cali-to-wl-dispatch - [0:0]",
		":" + policyChain + " - [0:0]"}
	for _, p := range policed {
		rules = append(rules, fmt.Sprintf("-A %s -s %s -j RETURN", policyChain, p.V4),
			fmt.Sprintf("-A cali-to-wl-dispatch -o %s -g %s", p.hostLink(), policyChain))
	}
	for _, l := range links {
		rules = append(rules, "-A cali-from-wl-dispatch -i "+l+" -j RETURN", "-A cali-to-wl-dispatch -o "+l+" -j RETURN")
	}
	rules = append(rules, "-A "+policyChain+" -j DROP", "-A cali-from-wl-dispatch -j DROP", "-A cali-to-wl-dispatch -j DROP",
		"-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch", "-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch",
		"-I FORWARD 1 -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD", "COMMIT")
	return "iptables-nft-restore --noflush <<END\n" + strings.Join(rules, "\n") + "\nEND\n"
}

// hostLink is the name of the node's end of a pod's link.
func (p *pod) hostLink() string {
	return podnet.HostVethName(podnet.DefaultVethPrefix, "default", p.name)
}

// deniedStreams are streams that a policy denies.
type deniedStreams []*deniedStream

type deniedStream struct {
	*meshtest.Stream
	name    string
	arrived int // before the denial, and since it was reported
}

// silentFor is how many packets of a stream that is denied are sent, none of which arrives.
const silentFor = 1000

// denied waits until packets of streams, which arrived before, no longer arrive.
func (w *world) denied(streams map[string]*meshtest.Stream) (all deniedStreams) {
	w.t.Helper()
	for name, s := range streams {
		d := &deniedStream{Stream: s, name: name}
		from := s.Sent()
		meshtest.Eventually(w.t, func() error {
			if now := s.Arrived(); now > d.arrived {
				d.arrived, from = now, s.Sent()
			}
			if sent := s.Sent() - from; sent < silentFor {
				return fmt.Errorf("%d packets of %s have arrived, the last one %d before the last one sent", d.arrived, name, sent)
			}
			return nil
		})
		all = append(all, d)
	}
	return all
}

// none fails the test if a packet has arrived since the last time.
func (all deniedStreams) none(t *testing.T, when string) {
	t.Helper()
	for _, d := range all {
		now := d.Arrived()
		if now > d.arrived {
			t.Errorf("%s: %d packets of %s came through, which policy denies", when, now-d.arrived, d.name)
		}
		d.arrived = now
	}
}

// agentLabels select the agents' pods.
const agentLabels = "app.kubernetes.io/name=tortie,app.kubernetes.io/component=node"

// latePolicies has agents read no policies until the one of a node, which is the first, has made its routes and logged
// that it cannot read NetworkPolicies. Felix's rules must have stayed until then.
func (w *world) latePolicies(node string) {
	w.t.Helper()
	text := w.Kubectl(w.t, "get", "clusterrole", "tortie-node", "-o", "json")
	var role struct {
		Rules []rbacv1.PolicyRule `json:"rules"`
	}
	errtest.Must(w.t, json.Unmarshal([]byte(text), &role))
	all := slices.Clone(role.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "networkpolicies") })
	if len(role.Rules) == len(all) {
		w.t.Fatalf("agents have no right to read policies: %s", text)
	}
	w.grant(role.Rules)
	shows := func(words, command string, args ...string) bool {
		out, err := w.Do(w.t.Context(), command, args...)
		return err == nil && strings.Contains(out, words)
	}
	go func() { // it ends with the step, which waits for an agent that is ready
		for tick := time.Tick(200 * time.Millisecond); w.t.Context().Err() == nil; <-tick {
			if shows("proto 84", "exec", node, "ip", "route") &&
				shows("kind=NetworkPolicy", "kubectl", "-n", "kube-system", "logs", "-l", agentLabels, "-c", "node", "--tail=-1") {
				break
			}
		}
		if chains, err := w.Do(w.t.Context(), "exec", node, "nft", "list", "chains"); err == nil &&
			!strings.Contains(chains, "cali-from-wl-dispatch") {
			w.t.Errorf("Felix's rules are gone from %s before the agent knows of policies: %s", node, chains)
		}
		w.grant(all)
	}()
}

// grant sets the rights of agents.
func (w *world) grant(rules []rbacv1.PolicyRule) {
	patch, err := json.Marshal(map[string]any{"rules": rules})
	if err == nil {
		_, err = w.Do(w.t.Context(), "kubectl", "patch", "clusterrole", "tortie-node", "--type=merge", "-p", string(patch))
	}
	if err != nil {
		w.t.Error(err)
	}
}

// open takes the emulated Felix's policies away on all nodes, to show that nothing else has kept the streams from
// arriving.
func (w *world) open(all deniedStreams) {
	w.t.Helper()
	for _, n := range nodes {
		w.On(w.t, n.name, fmt.Sprintf("nft flush chain ip calico filter-%[1]s 2>/dev/null || nft flush chain ip filter %[1]s", policyChain))
	}
	for _, d := range all {
		meshtest.Eventually(w.t, func() error {
			if d.Arrived() == d.arrived {
				return fmt.Errorf("nothing of %s arrives although nothing denies it", d.name)
			}
			return nil
		})
		c := d.End()
		w.t.Logf("%s: %d packets sent in %v, all denied but the %d before the policy and at the end", d.name, c.Sent,
			c.Took.Round(time.Second), c.Sent-c.Lost)
	}
}

// files returns checksums of the installed files of a node.
func (w *world) files(node string) string {
	w.t.Helper()
	return w.On(w.t, node, "sha256sum /etc/cni/net.d/10-calico.conflist /opt/cni/bin/calico /opt/cni/bin/calico-ipam /opt/cni/bin/portmap "+
		"/opt/cni/bin/bandwidth; grep -c . /etc/cni/net.d/calico-kubeconfig")
}

// golden returns Calico's object of a pod that this test does not use.
func (w *world) golden() string {
	w.t.Helper()
	return w.Kubectl(w.t, "get", "ipamhandles.crd.projectcalico.org",
		"k8s-pod-network.3f1d9c8a7b6e5d4c3b2a190817263544536271809fabcdef0123456789abcdef", "-o", "jsonpath={.spec} {.metadata.uid}") + "\n" +
		w.Kubectl(w.t, "get",
			"ipamblocks.crd.projectcalico.org", "192-168-154-0-26", "-o", `jsonpath={.metadata.uid} {.spec.cidr} {.spec.affinity} `+
				`{.spec.attributes[?(@.handle_id=="k8s-pod-network.3f1d9c8a7b6e5d4c3b2a190817263544536271809fabcdef0123456789abcdef")].secondary}`) +
		"\n" +
		w.Kubectl(w.t, "get", "blockaffinities.crd.projectcalico.org", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.spec}{"\n"}{end}`) + "\n" +
		w.Kubectl(w.t, "get", "ippools.crd.projectcalico.org", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.finalizers} {.spec}{"\n"}{end}`)
}

// alone fails the test if the cluster has a definition of the API group that it does not use: Calico's programs would
// turn to crd.projectcalico.org/v1 by that.
func (w *world) alone() {
	w.t.Helper()
	other := path.Dir(string(labtest.Group(w.t).Other()))
	for _, name := range strings.Fields(w.Kubectl(w.t, "get", "crd", "-o", "jsonpath={.items[*].metadata.name}")) {
		if _, group, _ := strings.Cut(name, "."); group == other {
			w.t.Errorf("the cluster has the definition %s", name)
		}
	}
}

// A Calico cluster of either API group is migrated by the page, node by node, and back again under traffic. No pod
// loses a packet, its address or a connection, none gets a packet that a policy of Kubernetes or Calico denies, and
// Calico's objects are unchanged. Felix works by nftables on one node, by iptables on the other.
func TestFromCalicoAndBack(t *testing.T) {
	tier.All(t)
	w := newWorld(t, len(nodes))
	w.calico()
	first, second := w.pod("first", nodes[0].name), w.pod("second", nodes[1].name)
	for i, want := range []string{"192.168.154.3", "192.168.9.69"} { // the next free addresses of Calico's blocks
		if got := []*pod{first, second}[i].V4.String(); got != want {
			t.Errorf("%s got %s, want %s", nodes[i].name, got, want)
		}
	}
	stranger := w.pod("stranger", nodes[1].name)
	strange := map[string]*meshtest.Stream{}
	for _, to := range []*pod{first, second} {
		name := "stranger to " + to.name
		strange[name] = meshtest.StartStream(t, name, stranger.Pod, to.Pod)
	}
	w.apply("policy.yaml")
	w.felix(nodes[0].name, felixNFTables, first, second)
	w.felix(nodes[1].name, felixIPTables, first, second)
	denied := w.denied(strange)
	files, golden := []string{w.files(nodes[0].name), w.files(nodes[1].name)}, w.golden()
	packets := meshtest.StartTraffic(t, first.Pod, second.Pod)
	for _, s := range packets { // each way once: the first node changes while the second has BIRD, and back after it
		s.PastBIRD(1)
	}
	connection := connect(t, first.Pod, second.Pod)
	sh := newShell(t, readPage(t, "migrate-from-calico.md"), w.Lab)

	sh.follow(t, "Before you begin", map[string]string{"GROUP": path.Dir(string(labtest.Group(t)))})
	sh.follow(t, "1. Let Calico keep off nodes that have moved", nil)
	sh.follow(t, "2. Install Tortie, on no node yet", nil)
	move := func(node, moved string) {
		t.Helper()
		sh.follow(t, "3. Move a node", map[string]string{"NODE": node, "MOVED": moved})
		connection.alive(t)
		denied.none(t, node+" has moved")
		if chains := w.On(w.t, node, "nft list chains"); strings.Contains(chains, "cali-") {
			t.Errorf("Felix's rules still exist on %s: %s", node, chains)
		}
	}
	back := func(node, calico string) {
		t.Helper()
		sh.follow(t, "4. Take a node back to Calico", map[string]string{"NODE": node, "CALICO": calico})
		connection.alive(t)
		denied.none(t, node+" is back")
		if tables := w.On(w.t, node, "nft list tables"); strings.Contains(tables, "tortie") {
			t.Errorf("Tortie's rules still exist on %s: %s", node, tables)
		}
		for i, n := range nodes {
			if got := w.files(n.name); n.name == node && got != files[i] {
				t.Errorf("files of %s:\n%s\nbefore:\n%s", node, got, files[i])
			}
		}
		if left := w.On(w.t, node, "ip route show proto 84"); left != "" {
			t.Errorf("%s has routes of the agent:\n%s", node, left)
		}
	}
	// Not node1 back and forth at once: the other node's BIRD drops the stale routes of a peer that restarts again during
	// its graceful restart.
	w.latePolicies("node1")
	move("node1", "1")
	move("master", "2")
	sh.follow(t, "5. When the last node has moved", nil)
	if now := w.golden(); now != golden {
		t.Errorf("the datastore has\n%s\nand Calico had\n%s", now, golden)
	}
	w.alone()
	third := w.pod("third", nodes[0].name)
	if !netip.MustParsePrefix(nodes[0].block).Contains(third.V4) {
		t.Errorf("a new pod has %s, want one of its node's block %s", third.V4, nodes[0].block)
	}
	sh.follow(t, "6. Back to Calico, the whole cluster", nil)
	back("node1", "1")
	back("master", "2")
	sh.follow(t, "When no node has Tortie any more", nil)

	connection.alive(t)
	packets.Intact(t)
	denied.none(t, "at the end")
	w.open(denied)
	first.same()
	second.same()
}

// talk is one TCP connection between two pods.
type talk struct{ near, far net.Conn }

// connect opens a connection that must survive.
func connect(t *testing.T, from, to *meshtest.Pod) *talk {
	t.Helper()
	var l net.Listener
	to.Within(t, func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(to.V4, 7100).String())
		return err
	})
	defer l.Close()
	c := &talk{}
	from.Within(t, func() (err error) {
		c.near, err = net.DialTimeout("tcp4", l.Addr().String(), meshtest.Patience)
		return err
	})
	var err error
	if c.far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.near.Close(); c.far.Close() })
	c.alive(t)
	return c
}

// alive fails the test if the connection is broken.
func (c *talk) alive(t *testing.T) {
	t.Helper()
	for _, way := range [][2]net.Conn{{c.near, c.far}, {c.far, c.near}} {
		const said = "still here"
		_ = way[1].SetReadDeadline(time.Now().Add(meshtest.Patience))
		_, err := way[0].Write([]byte(said))
		heard := make([]byte, len(said))
		if err == nil {
			_, err = io.ReadFull(way[1], heard)
		}
		if err != nil || string(heard) != said {
			t.Fatalf("the connection from %s to %s: %q, %v", way[0].LocalAddr(), way[0].RemoteAddr(), heard, err)
		}
	}
}
