package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// maxAgentRSS is the limit of the agent's memory in such a cluster, in kB.
const maxAgentRSS = 64 << 10

const (
	// readyTime is the limit of the agent's start, in which it reads all objects on a busy machine.
	readyTime     = 2 * time.Minute
	blocksPerNode = 3 // of the large cluster
	agentNode     = "bench-memory"
	// memoryIndex is the unique index of its node.
	memoryIndex = 250
)

// agentSize is the memory of one agent in a cluster.
type agentSize struct {
	what           string
	mesh, answer   bool // the nodes are peers; they answer
	nodes, blocks  int
	ready, settled memory
	took           time.Duration // until it was ready
	settle         time.Duration // until the second look
}

// runMemory starts the real agent in a big cluster, with nodes of realistic size, and measures its memory.
func runMemory(ctx context.Context, c *cluster, bin string, size sizes) (all []agentSize, err error) {
	if err := c.fill(size.largeCluster); err != nil {
		return nil, err
	}
	// Without a tunnel: the kernel may not support it, and it does not matter here.
	if err := c.replace("ippools", "IPPool", "default-ipv4-ippool", object{"cidr": "10.128.0.0/12", "blockSize": 26, "natOutgoing": true}); err != nil {
		return nil, err
	}
	var request struct{ Status struct{ Token string } }
	if err := c.do(http.MethodPost, systemPath+"/tortie-node/token", object{"spec": object{}}, &request); err != nil {
		return nil, err
	}
	n, err := newNode(c.underlay, memoryIndex, bin, 0)
	if err != nil {
		return nil, err
	}
	defer n.end()
	if err := n.write(kubeconfigPath, labtest.PluginKubeconfig(c.client.server, c.ca, request.Status.Token)); err != nil {
		return nil, err
	}
	if err := c.do(http.MethodPost, "/api/v1/nodes", object{"metadata": object{"name": agentNode}}, nil); err != nil {
		return nil, err
	}
	for _, f := range []agentSize{
		{what: "route reflectors, so no mesh"},
		{what: "full mesh, no peer answers", mesh: true},
		{what: "full mesh, all peers answer", mesh: true, answer: true},
	} {
		f.nodes, f.blocks = size.largeCluster, blocksPerNode*size.largeCluster
		if err := c.setMesh(f.mesh); err != nil {
			return nil, err
		}
		if err := f.measure(ctx, n, bin, size.settle); err != nil {
			return nil, fmt.Errorf("%s: %w", f.what, err)
		}
		progress(fmt.Sprintf("memory: %s: ready after %v with %s MiB, settled at %s MiB, peak %s MiB", f.what, f.took.Round(time.Millisecond),
			mebibytes(f.ready.rss), mebibytes(f.settled.rss), mebibytes(f.settled.peak)))
		all = append(all, f)
	}
	return all, nil
}

func (c *cluster) setMesh(on bool) error {
	return c.replace("bgpconfigurations", "BGPConfiguration", "default", object{"nodeToNodeMeshEnabled": on})
}

// replace recreates a custom resource.
func (c *cluster) replace(plural, kind, name string, spec object) error {
	if err := c.do(http.MethodDelete, crdPath+plural+"/"+name, nil, nil); err != nil && !strings.Contains(err.Error(), "HTTP 404") {
		return err
	}
	return c.do(http.MethodPost, crdPath+plural, object{"apiVersion": api.Group + "/v1", "kind": kind, "metadata": object{"name": name}, "spec": spec}, nil)
}

// measure runs the agent on a node until it has settled.
func (f *agentSize) measure(ctx context.Context, n *node, bin string, settle time.Duration) (err error) {
	f.settle = settle
	address := n.address()
	if f.answer {
		address = agentOnLink + "/16"
		peers, err := startAnswering(ctx, n, f.nodes)
		if err != nil {
			return err
		}
		defer peers.end()
	}
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(bin, "node"))
	cmd.Env = []string{"NODENAME=" + agentNode, "IP=" + address, "KUBECONFIG=" + kubeconfigPath, "NO_DEFAULT_POOLS=true", "LOG_LEVEL=warn"}
	cmd.Stderr = &log
	start := time.Now()
	if err := n.Do(cmd.Start); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	defer func() {
		err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // the exit status does not matter
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, tail(log.String()))
		}
	}()
	if err := n.awaitReady(ctx, start.Add(readyTime)); err != nil {
		return err
	}
	f.took = time.Since(start)
	if f.ready, err = agentMemory(cmd.Process.Pid); err != nil {
		return err
	}
	if f.answer {
		if err := n.awaitHeard(ctx, f.blocks); err != nil {
			return err
		}
	}
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	f.settled, err = agentMemory(cmd.Process.Pid)
	return err
}

// address is the node's address on its link.
func (n *node) address() string { return fmt.Sprintf("10.250.%d.2", n.index+1) }

// awaitReady polls the agent's readiness.
func (n *node) awaitReady(ctx context.Context, limit time.Time) error {
	for {
		_, err := n.agentSays("/readyz")
		if err == nil {
			return nil
		}
		if time.Now().After(limit) || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// agentSays asks the node's agent.
func (n *node) agentSays(path string) (string, error) {
	agent := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
		err = n.Do(func() error { conn, err = net.Dial(network, address); return err })
		return conn, err
	}}}
	resp, err := agent.Get("http://127.0.0.1:9099" + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the agent says %s to %s", resp.Status, path)
	}
	return string(text), err
}

// agentMemory is memoryOf an agent, which must run.
func agentMemory(pid int) (memory, error) {
	m, err := memoryOf(pid)
	if err == nil && m.rss == 0 {
		err = errors.New("the agent has exited")
	}
	return m, err
}

func tail(text string) string { return text[max(0, len(text)-2000):] }

// fill creates nodes, and three blocks for each.
func (c *cluster) fill(count int) error {
	progress(fmt.Sprintf("memory: making %d nodes and %d affinities", count, blocksPerNode*count))
	var g errgroup.Group
	g.SetLimit(16)
	for i := range count {
		g.Go(func() error {
			name := fmt.Sprintf("ip-10-251-%d-%d.eu-central-1.compute.internal", i/250, i%250+1)
			if err := c.do(http.MethodPost, "/api/v1/nodes", bigNode(name, i), nil); err != nil {
				return err
			}
			for b := range blocksPerNode {
				if err := c.do(http.MethodPost, crdPath+"blockaffinities", bigAffinity(name, blocksPerNode*i+b), nil); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// bigNode returns a node as clouds create them: 20 labels, ten annotations, and the images that its kubelet reports.
func bigNode(name string, i int) object {
	labels := object{
		"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
		"beta.kubernetes.io/arch": "amd64", "node.kubernetes.io/instance-type": "m6i.2xlarge", "beta.kubernetes.io/instance-type": "m6i.2xlarge",
		"topology.kubernetes.io/region": "eu-central-1", "failure-domain.beta.kubernetes.io/region": "eu-central-1",
		"topology.kubernetes.io/zone": fmt.Sprintf("eu-central-1%c", 'a'+i%3), "failure-domain.beta.kubernetes.io/zone": fmt.Sprintf("eu-central-1%c", 'a'+i%3),
		"topology.ebs.csi.aws.com/zone": fmt.Sprintf("eu-central-1%c", 'a'+i%3), "k8s.io/cloud-provider-aws": "3f2b7c5e0a6d4b1f9a8c7e6d5b4a3f2e",
		"kops.k8s.io/instancegroup": "workers", "node-role.kubernetes.io/node": "", "team.example.com/owner": "platform",
		"node.example.com/pool": fmt.Sprintf("pool-%d", i%10), "example.com/rack": fmt.Sprintf("rack-%d", i%40), "example.com/generation": "7", "example.com/lifecycle": "spot",
	}
	address := bigNodeAddress(i)
	annotations := object{
		"projectcalico.org/IPv4Address": address.String() + "/16", "projectcalico.org/IPv4IPIPTunnelAddr": fmt.Sprintf("10.244.%d.%d", i/64, i%64*4),
		"node.alpha.kubernetes.io/ttl": "15", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
		"csi.volume.kubernetes.io/nodeid":                  fmt.Sprintf(`{"ebs.csi.aws.com":"i-%017x","efs.csi.aws.com":"i-%017x"}`, i, i),
		"alpha.kubernetes.io/provided-node-ip":             address.String(),
		"kubeadm.alpha.kubernetes.io/cri-socket":           "unix:///run/containerd/containerd.sock",
		"cluster.x-k8s.io/machine":                         fmt.Sprintf("workers-%05x", i),
		"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 500),
		"machineconfiguration.example.com/currentConfig":   "rendered-worker-5f4dcc3b5aa765d61d8327deb882cf99",
	}
	var images []object
	for k := range 50 {
		images = append(images, object{"names": []string{
			fmt.Sprintf("registry.example.com/platform/service-%d@sha256:%064x", k, k), fmt.Sprintf("registry.example.com/platform/service-%d:v1.%d.0", k, i%7),
		}, "sizeBytes": 100_000_000 + k})
	}
	return object{
		"metadata": object{"name": name, "labels": labels, "annotations": annotations},
		"spec":     object{"podCIDR": fmt.Sprintf("10.%d.%d.0/24", 100+i/250, i%250), "providerID": fmt.Sprintf("aws:///eu-central-1a/i-%017x", i)},
		"status":   object{"images": images, "addresses": []object{{"type": "InternalIP", "address": address.String()}, {"type": "Hostname", "address": name}}},
	}
}

// bigNodeAddress is the address of such a node.
func bigNodeAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 251, byte(i / 250), byte(i%250 + 1)})
}

// bigBlock is a block of the large cluster.
func bigBlock(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + i>>10), byte(i >> 2), byte(i << 6)}), 26)
}

// bigAffinity returns a block affinity as Calico writes it.
func bigAffinity(node string, i int) object {
	cidr := bigBlock(i)
	labels := names.AffinityLabels(node, api.AffinityHost, cidr)
	return object{
		"apiVersion": api.Group + "/v1", "kind": "BlockAffinity",
		"metadata": object{"name": names.Affinity(node, cidr), "labels": labels, "annotations": object{
			names.AnnotationMetadata: fmt.Sprintf(`{"labels":{"projectcalico.org/hostname-hash":%q}}`, strings.Repeat("A", 180)),
		}},
		"spec": object{"state": "confirmed", "node": node, "type": "host", "cidr": cidr.String(), "deleted": "false"},
	}
}

func (r *results) judgeMemory() []verdict {
	var all []verdict
	for _, f := range r.memory {
		all = append(all, verdict{
			fmt.Sprintf("agent, %d nodes, %d affinities, %s", f.nodes, f.blocks, f.what), mebibytes(f.settled.rss) + " MiB", "≤ 64 MiB", f.settled.rss <= maxAgentRSS,
		})
	}
	return all
}

func (r *results) writeMemory(w *bytes.Buffer) {
	if len(r.memory) == 0 {
		return
	}
	fmt.Fprintf(w, "### What the agent holds\n\nThe real agent in a cluster of %d nodes, each with 20 labels, 10 annotations and 50 images, and %d affinities. Resident memory "+
		"when it is ready, and %v later; where peers answer, that long after it has heard all their blocks, by a session with each.\n\n",
		r.memory[0].nodes, r.memory[0].blocks, r.memory[0].settle)
	t := table{{"", "ready after s", "MiB then", "MiB later", "of that anonymous", "peak"}}
	for _, f := range r.memory {
		t.row(f.what, fmt.Sprintf("%.1f", f.took.Seconds()), mebibytes(f.ready.rss), mebibytes(f.settled.rss), mebibytes(f.settled.anonymous), mebibytes(f.settled.peak))
	}
	t.write(w)
}
