package plugin_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	etcdstore "github.com/tortie-net/tortie/internal/datastore/etcd"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// site is a node with an etcd of its own as datastore, with TLS and a pool.
type site struct {
	host     *host
	etcd     *labtest.Etcd
	store    *etcdstore.Store // as an administrator has it
	endpoint string           // as the node reaches etcd
	node     string
}

const siteCIDR = "10.77.0.0/24"

func newSite(t *testing.T, h *host, node string) *site {
	t.Helper()
	e := labtest.NewEtcd(t, true)
	store, err := etcdstore.New(etcdstore.Config{Endpoints: []string{e.Endpoint}, CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile})
	errtest.Must(t, err)
	l := h.Listen(t)
	t.Cleanup(func() { l.Close() })
	go labtest.Forward(l, strings.TrimPrefix(e.Endpoint, "https://"))
	for path, file := range map[string]string{"/etc/etcd/ca": e.CAFile, "/etc/etcd/cert": e.CertFile, "/etc/etcd/key": e.KeyFile} {
		text, err := os.ReadFile(file)
		errtest.Must(t, err)
		h.Write(t, path, string(text))
	}
	h.Write(t, nodenamePath, node)
	s := &site{host: h, etcd: e, store: store, endpoint: "https://" + l.Addr().String(), node: node}
	ready := true
	s.create(t, &api.ClusterInformation{Meta: api.Meta{Name: "default"}, Spec: api.ClusterInformationSpec{DatastoreReady: &ready}})
	s.create(t, &api.IPPool{Meta: api.Meta{Name: "pool"}, Spec: api.IPPoolSpec{CIDR: siteCIDR, BlockSize: 26, NodeSelector: "all()"}})
	return s
}

func (s *site) create(t *testing.T, obj api.Resource) {
	t.Helper()
	errtest.Must(t, s.store.Create(t.Context(), obj))
}

// exists reads an object into obj, if it is there.
func (s *site) exists(t *testing.T, obj api.Resource) bool {
	t.Helper()
	err := s.store.Get(t.Context(), obj)
	if err != nil && !strings.Contains(err.Error(), datastore.ErrNotFound.Error()) {
		t.Fatal(err)
	}
	return err == nil
}

// holders returns the handles, and the attributes of the addresses in the blocks.
func (s *site) holders(t *testing.T) (handles []string, held []map[string]string) {
	t.Helper()
	var hs api.IPAMHandleList
	var bs api.IPAMBlockList
	for _, list := range []api.ResourceList{&hs, &bs} {
		errtest.Must(t, s.store.List(t.Context(), list, datastore.ListOptions{}))
	}
	for _, h := range hs.Items {
		handles = append(handles, h.Spec.HandleID)
	}
	for _, b := range bs.Items {
		for _, a := range b.Spec.Attributes {
			delete(a.Secondary, "timestamp")
			held = append(held, a.Secondary)
		}
	}
	return handles, held
}

// plain is a container that is no pod's.
type plain struct {
	*site
	id    string
	ns    *netnstest.NS
	netns string
}

func (s *site) container(t *testing.T, name string) *plain {
	t.Helper()
	sum := sha256.Sum256([]byte(t.Name() + name))
	p := &plain{site: s, id: hex.EncodeToString(sum[:])}
	p.ns, p.netns = s.host.pod(t, name)
	return p
}

func (s *site) conf(network string, more map[string]any) map[string]any {
	conf := map[string]any{
		"name": network, "cniVersion": "1.0.0", "type": "calico", "datastore_type": "etcdv3", "etcd_endpoints": s.endpoint,
		"etcd_ca_cert_file": "/etc/etcd/ca", "etcd_cert_file": "/etc/etcd/cert", "etcd_key_file": "/etc/etcd/key",
		"mtu": 1440, "ipam": map[string]any{"type": "calico-ipam"},
	}
	for k, v := range more {
		conf[k] = v
	}
	return conf
}

func (p *plain) call(t *testing.T, plugin, command, network, ifName string) answer {
	t.Helper()
	conf, err := json.Marshal(p.conf(network, nil))
	errtest.Must(t, err)
	return p.host.call(t,
		call{plugin: plugin, command: command, container: p.id, netns: p.netns, ifName: ifName, path: "/opt/cni/bin", stdin: string(conf)})
}

func (p *plain) link() string { return "cali" + p.id[:11] }

func (p *plain) endpointObject(ifName string) *api.WorkloadEndpoint {
	return &api.WorkloadEndpoint{Meta: api.Meta{Name: "plain--node-cni-" + p.id + "-" + ifName, Namespace: "default"}}
}

var ofThisWrite = cmpopts.IgnoreFields(api.Meta{}, "UID", "ResourceVersion", "CreationTimestamp")

// A container that is no pod's: its life on etcd from ADD to DEL, in Calico's names.
func TestPlainContainerOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	c := s.container(t, "one")
	added := c.call(t, "calico", "ADD", "net1", "eth0")
	res := added.result(t)
	addr := address(t, res)
	if !netip.MustParsePrefix(siteCIDR).Contains(addr) || res.IPs[0].Address.String() != addr.String()+"/32" {
		t.Errorf("address %s", res.IPs[0].Address.String())
	}
	if res.Interfaces[0].Name != c.link() || res.Interfaces[1].Name != "eth0" || res.Interfaces[1].Sandbox != c.netns {
		t.Errorf("interfaces %+v", res.Interfaces)
	}
	w := c.endpointObject("eth0")
	if !s.exists(t, w) {
		t.Fatalf("there is no WorkloadEndpoint %s", w.Name)
	}
	want := c.endpointObject("eth0")
	want.Spec = api.WorkloadEndpointSpec{
		Orchestrator: "cni", Node: s.node, ContainerID: c.id, Endpoint: "eth0", IPNetworks: []string{addr.String() + "/32"},
		Profiles: []string{"net1"}, InterfaceName: c.link(), MAC: res.Interfaces[1].Mac,
	}
	difftest.Want(t, "endpoint", want, w, ofThisWrite)
	p := &api.Profile{Meta: api.Meta{Name: "net1"}}
	if !s.exists(t, p) || len(p.Spec.Ingress) != 1 || p.Spec.Ingress[0].Source.Selector != "has(net1)" || p.Spec.LabelsToApply["net1"] != "" {
		t.Errorf("profile %+v", p.Spec)
	}
	handles, held := s.holders(t)
	difftest.Want(t, "handles", []string{"net1." + c.id}, handles)
	difftest.Want(t, "attributes", []map[string]string{{"node": s.node}}, held)
	for range 2 {
		c.call(t, "calico", "DEL", "net1", "eth0").ok(t)
		c.gone(t)
	}
}

// A second ADD of a container without a pod changes nothing, in the kernel or in etcd, and prints the result of the
// first: also if the node's end of its link was renamed, and for a further network.
func TestPlainContainerTwiceOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	c := s.container(t, "one")
	added := c.call(t, "calico", "ADD", "net1", "eth0").ok(t)
	w := c.endpointObject("eth0")
	if !s.exists(t, w) {
		t.Fatalf("there is no WorkloadEndpoint %s", w.Name)
	}
	again := func(what, network string) {
		t.Helper()
		kernel := describeKernel(t, s.host.NS, c.ns)
		if got := c.call(t, "calico", "ADD", network, "eth0").ok(t); got.stdout != added.stdout {
			t.Errorf("%s: %s, want %s", what, got.stdout, added.stdout)
		}
		if d := cmp.Diff(kernel, describeKernel(t, s.host.NS, c.ns)); d != "" {
			t.Errorf("%s: the kernel (-before +after):\n%s", what, d)
		}
		now := c.endpointObject("eth0")
		if !s.exists(t, now) || network == "net1" && now.ResourceVersion != w.ResourceVersion || !slices.Contains(now.Spec.Profiles, network) {
			t.Errorf("%s: the endpoint was %+v and is %+v", what, w, now)
		}
	}
	again("as it is", "net1")
	s.host.Run(t, "ip", "link", "set", c.link(), "down")
	s.host.Run(t, "ip", "link", "set", c.link(), "name", "sali0")
	s.host.Run(t, "ip", "link", "set", "sali0", "up")
	waittest.Until(t, time.Minute, "sali0 is up", func() bool { // the kernel reports it a moment later
		l, err := s.host.Conn.LinkByName("sali0")
		return err == nil && !l.Down
	})
	again("with a link of another name", "net1")
	again("to a further network", "net2")
	c.call(t, "calico", "DEL", "net1", "eth0").ok(t)
	c.gone(t)
	if _, err := s.host.Conn.LinkByName("sali0"); !netlinkx.IsNotExist(err) {
		t.Errorf("after DEL: %v", err)
	}
}

// describeKernel returns the links of a node and a container, with the numbers that distinguish a new link from an old
// one, their IPv4 addresses and routes. The kernel itself changes IPv6 and the carrier for a while longer, also at the
// container's end of a link.
func describeKernel(t *testing.T, node, container *netnstest.NS) string {
	t.Helper()
	var text string
	for _, ns := range []*netnstest.NS{node, container} {
		links, err := ns.Conn.Links()
		errtest.Must(t, err)
		for _, l := range links {
			text += fmt.Sprintln(l.Name, l.Index, l.PeerIndex, l.HardwareAddr, l.Alias)
		}
		text += ns.Run(t, "ip", "-4", "-o", "addr") + ns.Run(t, "ip", "-4", "route", "show", "table", "all")
	}
	return strings.ReplaceAll(text, "linkdown ", "")
}

// A container that was started anew under its ID has lost the interface in its endpoint, and gets it again.
func TestPlainContainerStartedAnewOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	c := s.container(t, "one")
	addr := address(t, c.call(t, "calico", "ADD", "net1", "eth0").result(t))
	s.host.Run(t, "ip", "link", "del", c.link()) // as after a crash of the machine
	c.ns, c.netns = s.host.pod(t, "anew")
	if got := address(t, c.call(t, "calico", "ADD", "net1", "eth0").result(t)); got != addr {
		t.Errorf("address %s, want %s", got, addr)
	}
	if has := c.ns.Run(t, "ip", "-o", "addr", "show", "dev", "eth0"); !strings.Contains(has, addr.String()+"/32") {
		t.Errorf("eth0 has %s", has)
	}
	c.call(t, "calico", "DEL", "net1", "eth0").ok(t)
	c.gone(t)
}

// The annotation that feature_control.ip_addrs_no_ipam allows is a pod's: for another container the key is an error, as
// in Calico.
func TestNoIPAMWithoutPodOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	c := s.container(t, "one")
	conf, err := json.Marshal(s.conf("net1", map[string]any{"feature_control": map[string]any{"ip_addrs_no_ipam": true}}))
	errtest.Must(t, err)
	verb := func(command string) answer {
		return s.host.call(t,
			call{plugin: "calico", command: command, container: c.id, netns: c.netns, ifName: "eth0", path: "/opt/cni/bin", stdin: string(conf)})
	}
	if e := verb("ADD").failure(t); e.Code != types.ErrInvalidNetworkConfig || !strings.Contains(e.Msg, "feature_control.ip_addrs_no_ipam") {
		t.Errorf("%+v", e)
	}
	c.gone(t)
	verb("DEL").ok(t)
}

// gone fails the test unless nothing is left of the container.
func (p *plain) gone(t *testing.T) {
	t.Helper()
	handles, held := p.holders(t)
	if len(handles)+len(held) > 0 || p.exists(t, p.endpointObject("eth0")) {
		t.Errorf("left: handles %v, addresses %v", handles, held)
	}
	links, err := p.host.Conn.Links()
	errtest.Must(t, err)
	for _, l := range links {
		if l.Name == p.link() {
			t.Errorf("the node has link %s still", l.Name)
		}
	}
}

// A further network adds a profile to a container and no address; leaving it changes nothing of the first.
func TestFurtherNetworkOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	c := s.container(t, "one")
	first := c.call(t, "calico", "ADD", "net1", "eth0").result(t)
	for _, ifName := range []string{"eth0", "eth1", "eth1"} {
		second := c.call(t, "calico", "ADD", "net2", ifName).result(t)
		if address(t, second) != address(t, first) || second.Interfaces[0].Name != first.Interfaces[0].Name {
			t.Errorf("net2, %s: %+v, want what net1 gave: %+v", ifName, second, first)
		}
	}
	w := c.endpointObject("eth0")
	if !s.exists(t, w) || cmp.Diff([]string{"net1", "net2"}, w.Spec.Profiles) != "" {
		t.Errorf("profiles %v", w.Spec.Profiles)
	}
	if !s.exists(t, &api.Profile{Meta: api.Meta{Name: "net2"}}) {
		t.Error("there is no profile net2")
	}
	for _, ifName := range []string{"eth0", "eth1"} {
		c.call(t, "calico", "DEL", "net2", ifName).ok(t)
	}
	if _, held := s.holders(t); len(held) != 1 || !s.exists(t, w) {
		t.Errorf("net2 was left: addresses %v", held)
	}
	if _, err := s.host.Conn.LinkByName(c.link()); err != nil {
		t.Error(err)
	}
	c.call(t, "calico", "DEL", "net1", "eth0").ok(t)
	c.gone(t)
}

// calico-ipam alone, as another plugin executes it.
func TestIPAMPluginOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	c := s.container(t, "one")
	addr := address(t, c.call(t, "calico-ipam", "ADD", "net1", "eth0").result(t))
	if again := address(t, c.call(t, "calico-ipam", "ADD", "net1", "eth0").result(t)); again != addr {
		t.Errorf("ADD again: %s, want %s", again, addr)
	}
	c.call(t, "calico-ipam", "DEL", "net1", "eth0").ok(t)
	c.gone(t)
}

// While etcd is away, ADD fails after a few tries and DEL succeeds; the next DEL releases what it could not.
func TestEtcdAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	one, two := s.container(t, "one"), s.container(t, "two")
	one.call(t, "calico", "ADD", "net1", "eth0").ok(t)
	errtest.Must(t, s.etcd.Kill())
	refused := two.call(t, "calico", "ADD", "net1", "eth0").undelayed(t)
	if e := refused.failure(t); e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, s.endpoint) {
		t.Errorf("ADD: %+v", e)
	}
	deleted := one.call(t, "calico", "DEL", "net1", "eth0").ok(t).undelayed(t)
	difftest.Contains(t, deleted.stderr, "address not released", s.endpoint)
	errtest.Must(t, s.etcd.Start())
	if handles, _ := s.holders(t); len(handles) != 1 {
		t.Fatalf("handles %v, want the one that could not be released", handles)
	}
	two.call(t, "calico", "DEL", "net1", "eth0").ok(t)
	one.gone(t)
}

// An etcd that is not set up, or that an operator has locked, is not written to.
func TestEtcdNotReady(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	info := &api.ClusterInformation{Meta: api.Meta{Name: "default"}}
	if !s.exists(t, info) {
		t.Fatal("no ClusterInformation")
	}
	*info.Spec.DatastoreReady = false
	errtest.Must(t, s.store.Update(t.Context(), info))
	c := s.container(t, "one")
	if e := c.call(t, "calico", "ADD", "net1", "eth0").failure(t); e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, "not ready") {
		t.Errorf("ADD: %+v", e)
	}
	if handles, held := s.holders(t); len(handles)+len(held) > 0 {
		t.Errorf("it wrote: %v, %v", handles, held)
	}
}

// The verbs about the node: STATUS reports what an ADD would meet, CHECK what has changed, GC removes what is not
// listed.
func TestNodeVerbsOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	verb := func(command string, more map[string]any, c *plain) answer {
		more["cniVersion"] = "1.1.0"
		conf, err := json.Marshal(s.conf("net1", more))
		errtest.Must(t, err)
		call := call{plugin: "calico", command: command, path: "/opt/cni/bin", stdin: string(conf)}
		if c != nil {
			call.container, call.netns, call.ifName = c.id, c.netns, "eth0"
		}
		return s.host.call(t, call)
	}
	kept, leaked := s.container(t, "kept"), s.container(t, "leaked")
	added := kept.call(t, "calico", "ADD", "net1", "eth0").ok(t)
	leaked.call(t, "calico", "ADD", "net1", "eth0").ok(t)
	verb("STATUS", map[string]any{}, nil).ok(t)
	verb("CHECK", map[string]any{"prevResult": json.RawMessage(added.stdout)}, kept).ok(t)
	listed := []map[string]string{{"containerID": kept.id, "ifname": "eth0"}}
	for range 2 {
		verb("GC", map[string]any{"cni.dev/valid-attachments": listed}, nil).ok(t)
		if handles, _ := s.holders(t); cmp.Diff([]string{"net1." + kept.id}, handles) != "" || s.exists(t, leaked.endpointObject("eth0")) {
			t.Errorf("after GC: handles %v", handles)
		}
	}
	if !s.exists(t, kept.endpointObject("eth0")) {
		t.Error("GC took the endpoint of a container that is listed")
	}
	errtest.Must(t, s.etcd.Kill())
	if e := verb("STATUS", map[string]any{}, nil).failure(t); e.Code != 50 || !strings.Contains(e.Msg, s.endpoint) {
		t.Errorf("STATUS without etcd: %+v", e)
	}
}

// A pod with its endpoint in etcd: the pod is read from the API server and not written there.
func TestPodOnEtcd(t *testing.T) {
	t.Parallel()
	w := newEmptyWorld(t)
	s := newSite(t, w.host, w.name)
	w.uids["web-0"] = w.api.create(t,
		manifest(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: web-0, generateName: web-, namespace: %[1]s, labels: {app: web},
		annotations: {cni.projectcalico.org/allowedSourcePrefixes: '["192.0.2.7/24"]', cni.projectcalico.org/floatingIPs: '["192.0.2.9"]'}},
		spec: {nodeName: %[1]s, serviceAccountName: sa, containers: [{name: c, image: none, ports: [
			{name: http, containerPort: 80}, {containerPort: 81}, {containerPort: 82, protocol: UDP, hostPort: 8082}]}]}}`, w.name)))
	first := w.sandbox(t, "web-0")
	onEtcd := func(conf map[string]any) {
		for k, v := range s.conf(w.network(), map[string]any{
			"policy": map[string]any{"type": "k8s"}, "feature_control": map[string]any{"floating_ips": true}, "policy_enforced": true,
		}) {
			conf[k] = v
		}
	}
	res := w.host.call(t, first.call(t, "ADD", onEtcd)).result(t)
	addr := address(t, res)
	dashed := strings.ReplaceAll(w.name, "-", "--")
	endpoint := &api.WorkloadEndpoint{Meta: api.Meta{Name: dashed + "-k8s-web--0-eth0", Namespace: w.name}}
	want := &api.WorkloadEndpoint{
		Meta: api.Meta{Name: endpoint.Name, GenerateName: "web-", Namespace: w.name, Labels: map[string]string{
			"app": "web", "projectcalico.org/namespace": w.name, "projectcalico.org/orchestrator": "k8s", "projectcalico.org/serviceaccount": "sa",
		}},
		Spec: api.WorkloadEndpointSpec{
			Orchestrator: "k8s", Node: w.name, ContainerID: first.container, Pod: "web-0", Endpoint: "eth0",
			IPNetworks:         []string{addr.String() + "/32"},
			ServiceAccountName: "sa", Profiles: []string{"kns." + w.name, "ksa." + w.name + ".sa"},
			InterfaceName: res.Interfaces[0].Name, MAC: res.Interfaces[1].Mac,
			Ports:                      []api.EndpointPort{{Name: "http", Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 82, HostPort: 8082}},
			IPNATs:                     []api.EndpointNAT{{InternalIP: addr.String(), ExternalIP: "192.0.2.9"}},
			AllowSpoofedSourcePrefixes: []string{"192.0.2.0/24"},
		},
	}
	if !s.exists(t, endpoint) {
		t.Fatalf("there is no WorkloadEndpoint %s", endpoint.Name)
	}
	difftest.Want(t, "endpoint", want, endpoint, ofThisWrite)
	if text := w.podAnnotations(t, "web-0"); strings.Contains(text, "podIP") {
		t.Errorf("the pod was written to: %s", text)
	}
	if tables := w.host.Run(t, "nft", "list", "tables"); strings.Contains(tables, netpol.TableName) {
		t.Errorf("closed for an agent that is not to come: %s", tables)
	}
	if _, held := s.holders(t); cmp.Diff([]map[string]string{{"node": w.name, "pod": "web-0", "namespace": w.name}}, held) != "" {
		t.Errorf("attributes %v", held)
	}
	// A newer sandbox takes the endpoint over; the DEL of the older one leaves it alone.
	second := w.sandbox(t, "web-0")
	w.host.call(t, second.call(t, "ADD", onEtcd)).ok(t)
	w.host.call(t, first.call(t, "DEL", onEtcd)).ok(t)
	if !s.exists(t, endpoint) || endpoint.Spec.ContainerID != second.container {
		t.Errorf("endpoint of %s, want that of %s", endpoint.Spec.ContainerID, second.container)
	}
	w.host.call(t, second.call(t, "DEL", onEtcd)).ok(t)
	if handles, held := s.holders(t); len(handles)+len(held) > 0 || s.exists(t, endpoint) {
		t.Errorf("left: handles %v, addresses %v", handles, held)
	}
}

// calico -t reports whether etcd can be reached.
func TestProbeOfEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t, newHost(t), "plain-node")
	conf, err := json.Marshal(s.conf("net1", nil))
	errtest.Must(t, err)
	if a := s.host.exec(t, "/opt/cni/bin/calico", nil, string(conf), "-t"); a.exit != 0 {
		t.Errorf("exit %d: %s", a.exit, a.stdout)
	}
	errtest.Must(t, s.etcd.Kill())
	if a := s.host.exec(t, "/opt/cni/bin/calico", nil, string(conf), "-t"); a.exit != 1 ||
		!strings.Contains(a.stdout, fmt.Sprintf("%q", "code")) {
		t.Errorf("exit %d: %s", a.exit, a.stdout)
	}
}
