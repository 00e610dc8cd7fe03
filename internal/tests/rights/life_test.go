package rights

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/plugin/journal"
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

var programs = cnitest.NewPrograms("./cmd/calico", "./cmd/calico-ipam", "./cmd/install")

func TestMain(m *testing.M) {
	code := meshtest.Main(m)
	programs.Remove()
	os.Exit(code)
}

// life is a cluster of two nodes with real agents, and the real plugins and installer on a host that stands for the
// first node, with an API server that has an audit log and the chart's admission policies.
type life struct {
	server *labtest.Server
	*meshtest.Cluster
	first, second *meshtest.Node
	host          *cnitest.Host
	plugin        *rest.Config // as the plugins of the first node
	address       string       // of the server, on the host
}

func newLife(t *testing.T) *life {
	server := labtest.NewAuditedServer(t)
	l := &life{server: server, Cluster: meshtest.NewClusterOn(t, server), host: cnitest.NewHost(t, programs)}
	l.Launcher = confined(agentCapabilities(t))
	l.first, l.second = l.NewNode(t, "first", 0, 10), l.NewNode(t, "second", 0, 11)
	l.plugin = labtest.OnNode(t, l.Admin, "tortie-cni", "first")
	chart := labtest.Chart(t, chartArgs...)
	labtest.GrantAll(t, l.Admin, chart) // in addition to the default values' roles
	labtest.FenceWith(t, l.Admin, chart)
	listener := l.host.Listen(t)
	t.Cleanup(func() { listener.Close() })
	go labtest.Forward(listener, strings.TrimPrefix(l.plugin.Host, "https://"))
	l.address = listener.Addr().String()
	l.Env = []string{"NO_DEFAULT_POOLS=false", "TORTIE_POLICY=auto"}
	pool := meshtest.NewPool("default-ipv4-ippool", "10.10.0.0/29", api.EncapNever)
	pool.Spec.BlockSize, pool.Spec.VXLANMode = 32, api.EncapAlways
	l.Create(t, pool)
	return l
}

// restart stops an agent and starts it with more environment.
func (l *life) restart(t *testing.T, n *meshtest.Node, env ...string) {
	t.Helper()
	n.Signal(t, syscall.SIGTERM)
	before := l.Env
	l.Env = append(l.Env[:len(l.Env):len(l.Env)], env...)
	meshtest.Start(t, n)
	l.Env = before
}

// beginning initializes a cluster, and starts on an initialized one, with a server that does not support streaming
// lists.
func (l *life) beginning(t *testing.T) {
	meshtest.Start(t, l.first, l.second)
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	errtest.Must(t, l.Store.Get(t.Context(), info))
	info.Spec.ClusterType = "k8s"
	errtest.Must(t, l.Store.Update(t.Context(), info))
	l.restart(t, l.second, "KUBE_FEATURE_WatchListClient=false")
}

// migration takes over an address that host-local has assigned on the first node, of a deleted pod.
func (l *life) migration(t *testing.T, cfg *rest.Config) {
	t.Helper()
	l.host.Write(t, "/etc/agent-kubeconfig", kubeconfig(l.address, cfg))
	const lease = "/var/lib/cni/networks/k8s-pod-network/10.10.0.7"
	l.host.Write(t, lease, "gone\r\neth0")
	l.host.Write(t, "/opt/host/cni/bin/host-local", "old")
	l.host.On(t, func() error { return os.Chtimes(lease, time.Time{}, time.Now().Add(-time.Hour)) })
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, cnitest.BinDir+"/calico-ipam", "-upgrade")
	cmd.Env = []string{"KUBERNETES_NODE_NAME=first", "KUBECONFIG=/etc/agent-kubeconfig", "HOST_CNI_BIN_DIR=/opt/host/cni/bin"}
	l.host.On(t, func() error {
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("calico-ipam -upgrade: %w: %s", err, out)
		}
		return nil
	})
}

// installation installs the plugins, as the sidecar of the first node's agent does.
func (l *life) installation(t *testing.T) {
	dir := t.TempDir()
	cfg := labtest.OnNode(t, l.Admin, "tortie-node", "first")
	for name, text := range map[string]string{"token": cfg.BearerToken, "ca.crt": string(cfg.CAData), "namespace": "kube-system"} {
		errtest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	address, err := netip.ParseAddrPort(strings.TrimPrefix(cfg.Host, "https://"))
	errtest.Must(t, err)
	cmd := exec.Command(filepath.Join(programs.Dir(t), "install"), "-once")
	cmd.Env = []string{
		"KUBERNETES_NODE_NAME=first", "KUBERNETES_SERVICE_HOST=" + address.Addr().String(),
		fmt.Sprint("KUBERNETES_SERVICE_PORT=", address.Port()),
		"SERVICE_ACCOUNT_DIR=" + dir, "CNI_BIN_SOURCE_DIR=" + programs.Dir(t), "SKIP_CNI_BINARIES=install", "HOST_CNI_BIN_DIR=" + dir + "/bin",
		"HOST_CNI_NET_DIR=" + dir + "/net",
		"TORTIE_INSTALL_STATE_DIR=" + dir, "TORTIE_INSTALL_RUN_DIR=" + dir,
	}
	for _, made := range []string{"bin", "net"} {
		errtest.Must(t, os.Mkdir(filepath.Join(dir, made), 0o755))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "net", "calico-kubeconfig"))
	errtest.Must(t, err)
	if bytes.Contains(text, []byte(cfg.BearerToken)) {
		t.Error("the plugins have the agent's token")
	}
	l.migration(t, cfg)
}

// call executes a plugin for a pod's sandbox on the host.
func (l *life) call(t *testing.T, verb, container, pod string, more map[string]any) error {
	t.Helper()
	conf := map[string]any{
		"name": "net", "cniVersion": "1.1.0", "type": "calico", "datastore_type": "kubernetes", "nodename": "first",
		"ipam": map[string]any{"type": "calico-ipam"}, "policy": map[string]any{"type": "k8s"},
		"kubernetes": map[string]any{"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"},
	}
	for key, value := range more {
		conf[key] = value
	}
	stdin, err := json.Marshal(conf)
	errtest.Must(t, err)
	cmd := exec.Command(cnitest.BinDir + "/calico")
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_PATH=" + cnitest.BinDir}
	if container != "" {
		ns := netnstest.New(t)
		cmd.Env = append(cmd.Env, "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0", fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), ns.Fd()),
			"CNI_ARGS=K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod)
	}
	return l.host.Try(func() error {
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s", verb, container, err, out)
		}
		return nil
	})
}

// reach writes the kubeconfig of the first node's plugins for an address of the host.
func (l *life) reach(t *testing.T, address string) {
	t.Helper()
	l.host.Write(t, "/etc/cni/net.d/calico-kubeconfig", kubeconfig(address, l.plugin))
}

func kubeconfig(address string, cfg *rest.Config) string {
	return labtest.PluginKubeconfig("https://"+address, cfg.CAData, cfg.BearerToken)
}

// pod creates a pod of the first node.
func (l *life) pod(t *testing.T, name string) {
	t.Helper()
	admin := newUser(t, l.Admin)
	admin.create(t, object(t,
		`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: default}, spec: {nodeName: first, containers: [{name: c, image: none}]}}`,
		name))
}

// containers runs ADD and DEL, a DEL that the agent completes, and GC.
func (l *life) containers(t *testing.T) {
	l.reach(t, l.address)
	l.host.Write(t, "/var/lib/calico/nodename", "first")
	for _, pod := range []string{"usual", "late", "dead"} {
		l.pod(t, pod)
		errtest.Must(t, l.call(t, "ADD", pod, pod, nil))
	}
	errtest.Must(t, l.call(t, "STATUS", "", "", nil))
	errtest.Must(t, l.call(t, "DEL", "usual", "usual", nil))
	errtest.Must(t,
		l.call(t, "GC", "", "", map[string]any{"cni.dev/valid-attachments": []any{map[string]any{"containerID": "late", "ifname": "eth0"}}}))
	l.reach(t, "127.0.0.1:1")
	errtest.Must(t, l.call(t, "DEL", "late", "late", nil))
	l.handJournal(t)
	l.reach(t, l.address)
}

// handJournal copies the plugins' journal to the agent, and waits until the agent has processed it.
func (l *life) handJournal(t *testing.T) {
	t.Helper()
	to := filepath.Join(l.first.Dir, "state", "tortie", "journal")
	errtest.Must(t, os.MkdirAll(to, 0o700))
	l.host.On(t, func() error {
		entries, err := os.ReadDir(string(journal.DefaultDir))
		for _, e := range entries {
			text, errRead := os.ReadFile(filepath.Join(string(journal.DefaultDir), e.Name()))
			err = errors.Join(err, errRead, os.WriteFile(filepath.Join(to, e.Name()), text, 0o600))
		}
		if len(entries) == 0 {
			return errors.New("the plugin has written no journal")
		}
		return err
	})
	meshtest.Eventually(t, func() error {
		if err := l.Store.Get(t.Context(),
			&api.IPAMHandle{Meta: api.Meta{Name: "net.late"}, Spec: api.IPAMHandleSpec{HandleID: "net.late"}}); err == nil {
			return errors.New("the agent has not finished the journal")
		}
		return nil
	})
}

// block creates a block of one address that was claimed long ago. holder is the node of its address, owner the node of
// its affinity.
func (l *life) block(t *testing.T, cidr, owner, holder string) {
	t.Helper()
	spec := map[string]any{
		"cidr": cidr, "affinityClaimTime": "2026-01-02T03:04:05Z", "strictAffinity": false, "deleted": false, "sequenceNumber": 1,
		"allocations": []any{nil}, "unallocated": []any{0}, "attributes": []any{}, "sequenceNumberForAllocation": map[string]any{},
	}
	if holder != "" {
		spec["allocations"], spec["unallocated"] = []any{0}, []any{}
		spec["attributes"] = []any{map[string]any{"handle_id": "net.x", "secondary": map[string]any{"node": holder}}}
	}
	if owner != "" {
		spec["affinity"] = names.HostAffinity(owner)
		l.Create(t, meshtest.NewAffinity(owner, cidr))
	}
	text, err := json.Marshal(spec)
	errtest.Must(t, err)
	newUser(t, l.Admin).create(t,
		object(t, `{kind: IPAMBlock, metadata: {name: %s}, spec: %s}`, names.Block(netip.MustParsePrefix(cidr)), text))
}

// rest returns the free blocks of a pool of 8.
func (l *life) rest(t *testing.T, base string) (free []string) {
	t.Helper()
	first := netip.MustParseAddr(base)
	for range 8 {
		cidr := netip.PrefixFrom(first, 32)
		if err := l.Store.Get(t.Context(), &api.IPAMBlock{Meta: api.Meta{Name: names.Block(cidr)}}); err != nil {
			free = append(free, cidr.String())
		}
		first = first.Next()
	}
	return free
}

// scarcity exhausts all ranges: pods, and then tunnels, claim blocks without an owner, leave the others to their
// owners, and borrow.
func (l *life) scarcity(t *testing.T) {
	pool := &api.IPPool{Meta: api.Meta{Name: "default-ipv4-ippool"}}
	errtest.Must(t, l.Store.Get(t.Context(), pool))
	pool.Spec.NodeSelector = "!has(other)" // so that the selector must be evaluated
	errtest.Must(t, l.Store.Update(t.Context(), pool))
	rest := l.rest(t, "10.10.0.0")
	l.scarce(t, rest, "first")
	again := &api.IPAMHandle{Meta: api.Meta{Name: "net.pod0"}, Spec: api.IPAMHandleSpec{HandleID: "net.pod0", Block: map[string]int{}}}
	l.Create(t, again) // as left by a killed ADD
	for i := range 8 - len(rest) + 1 {
		name := fmt.Sprint("pod", i)
		l.pod(t, name)
		if err := l.call(t, "ADD", name, name, nil); err != nil && i < 8-len(rest)-2 {
			t.Fatal(err)
		}
	}
	spare := meshtest.NewPool("spare", "10.11.0.0/29", api.EncapNever)
	spare.Spec.VXLANMode, spare.Spec.BlockSize, spare.Spec.NodeSelector = api.EncapAlways, 32, "!has(other)"
	l.scarce(t, l.rest(t, "10.11.0.0"), "third")
	l.Create(t, spare)
	meshtest.Start(t, l.NewNode(t, "third", 0, 12), l.NewNode(t, "fourth", 0, 13))

	h := &api.IPAMHandle{Meta: api.Meta{Name: names.VXLANHandle("first")}, Spec: api.IPAMHandleSpec{HandleID: names.VXLANHandle("first")}}
	errtest.Must(t, l.Store.Get(t.Context(), h))
	h.Spec.Block = map[string]int{}
	errtest.Must(t, l.Store.Update(t.Context(), h))
	l.restart(t, l.first)
}

// scarce leaves one free block without an owner and one of a node that does not use it; of the others one is claimed by
// two nodes.
func (l *life) scarce(t *testing.T, free []string, node string) {
	t.Helper()
	if len(free) < 3 {
		t.Fatalf("only %s is free", free)
	}
	l.block(t, free[0], "", "")
	l.block(t, free[1], "ghost", "")
	for _, cidr := range free[2:] {
		l.block(t, cidr, "ghost", "ghost")
	}
	l.Create(t, meshtest.NewAffinity(node, free[2]))
}

// configuration applies other settings of operators: BGP with passwords, services, reports, and mistakes.
func (l *life) configuration(t *testing.T) {
	admin := newUser(t, l.Admin)
	admin.create(t, object(t, `{kind: GlobalNetworkPolicy, metadata: {name: accounts}, spec: {selector: has(nothing), `+
		`serviceAccountSelector: has(nothing), types: [Ingress]}}`))
	admin.create(t, object(t, `{apiVersion: v1, kind: Secret, metadata: {name: bgp, namespace: kube-system}, stringData: {password: x}}`))
	admin.create(t, object(t, `{kind: BGPConfiguration, metadata: {name: default}, spec: {serviceClusterIPs: [{cidr: 10.96.0.0/16}], `+
		`nodeMeshPassword: {secretKeyRef: {name: bgp, key: password}}}}`))
	admin.create(t,
		object(t, `{kind: CalicoNodeStatus, metadata: {name: ask}, spec: {node: first, classes: [Agent, BGP, Routes], updatePeriodSeconds: 10}}`))
	bad := "x"
	l.second.Annotate(t, api.AnnotationASNumber, &bad)
	meshtest.Eventually(t, func() error {
		status := &api.CalicoNodeStatus{Meta: api.Meta{Name: "ask"}}
		if err := l.Store.Get(t.Context(), status); err != nil || status.Status.LastUpdated == nil {
			return fmt.Errorf("CalicoNodeStatus has no status: %v", err)
		}
		return nil
	})
	l.restart(t, l.second, "KUBE_FEATURE_WatchListClient=false")
}

// reported waits for an Event of the first node's agents with this count.
func (l *life) reported(t *testing.T, reason string, times int32) {
	t.Helper()
	all := newUser(t, l.Admin).core.CoreV1().Events("")
	meshtest.Eventually(t, func() error {
		found, err := all.List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=first,reason=" + reason})
		if err != nil {
			return err
		}
		for i := range found.Items {
			if found.Items[i].Count >= times {
				return nil
			}
		}
		return fmt.Errorf("%d Events %s, want one with count %d", len(found.Items), reason, times)
	})
}
