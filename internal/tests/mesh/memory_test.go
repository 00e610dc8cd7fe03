package mesh

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// Addresses on the link between the agent and the host of all other nodes' addresses, which are in nodesCIDR.
const (
	nodesCIDR     = "10.251.0.0/22"
	agentOnLink   = "10.251.255.254"
	othersOnLink  = "10.251.255.253"
	othersMAC     = "02:00:00:00:00:01"
	blocksPerNode = 3
)

// object is an object of the Kubernetes API.
type object = map[string]any

// An agent in a cluster of nodes with realistic objects learns the blocks of all nodes that answer. hack/bench measures
// its memory, in clusters that grow, a minute and a half later: then the garbage collector has returned the memory of
// its start.
func TestMemory(t *testing.T) {
	tier.All(t)
	sizes, settle := []int{5}, time.Duration(0)
	if meshtest.Measuring() {
		sizes, settle = []int{100, 300, 1000}, 90*time.Second
	}
	c := meshtest.NewCluster(t)
	c.Env = []string{"IP=" + agentOnLink + "/16", "LOG_LEVEL=warn"}
	c.Create(t, meshtest.NewPool("large", "10.128.0.0/12", api.EncapNever))
	agent, others := c.NewNode(t, "agent", 0, 10), c.NewNode(t, "others", 0, 11)
	agent.Addr(t, "eth0", agentOnLink+"/16")
	others.Run(t, "ip", "link", "set", "eth0", "address", othersMAC)
	others.Addr(t, "eth0", othersOnLink+"/16")
	others.Run(t, "ip", "route", "add", "local", nodesCIDR, "dev", "lo")
	before := 0
	for _, count := range sizes {
		fill(t, c, agent, before, count)
		before = count
		for _, kind := range []struct {
			what         string
			mesh, answer bool
		}{{"route reflectors, so no mesh", false, false}, {"full mesh, no peer answers", true, false},
			{"full mesh, all peers answer", true, true}} {
			conf := &api.BGPConfiguration{Meta: api.Meta{Name: "default"}, Spec: api.BGPConfigurationSpec{NodeToNodeMeshEnabled: &kind.mesh}}
			c.Remove(t, &api.BGPConfiguration{Meta: api.Meta{Name: "default"}})
			c.Create(t, conf)
			end := func() {}
			if kind.answer {
				end = answer(others, count)
			}
			meshtest.Start(t, agent)
			if kind.answer {
				meshtest.Eventually(t, func() error { return heard(agent, blocksPerNode*count) })
			}
			time.Sleep(settle) //nolint:forbidigo // memory is measured at rest
			used := agent.Usage(t)
			for what, kib := range map[string]int{"memory": used.RSS, "of that anonymous": used.Anonymous, "peak": used.Peak} {
				meshtest.Record(fmt.Sprintf("memory | %s | %d | %s", kind.what, count, what), "MiB", float64(kib)/1024)
			}
			agent.Signal(t, syscall.SIGTERM)
			end()
		}
	}
}

var receivedMetric = regexp.MustCompile(`(?m)^tortie_bgp_received_prefixes(?:\{[^}]*\})? ([0-9.e+]+)$`)

// heard returns nil once the agent has this number of paths.
func heard(n *meshtest.Node, want int) error {
	text, err := n.Metrics()
	have := 0.0
	for _, m := range receivedMetric.FindAllStringSubmatch(text, -1) {
		value, _ := strconv.ParseFloat(m[1], 64) // digits
		have += value
	}
	if err == nil && int(have) != want {
		err = fmt.Errorf("the agent has heard %v of %d blocks", have, want)
	}
	return err
}

// answer keeps up a session with the agent from each node's address, on which the node announces its blocks. The agent
// refuses it until it knows the node. end ends all sessions.
func answer(others *meshtest.Node, count int) (end func()) {
	done := make(chan struct{})
	var all errgroup.Group
	for i := range count {
		all.Go(func() error {
			for {
				speak(others, i, done)
				select {
				case <-done:
					return nil
				case <-time.After(time.Second): // before it tries again
				}
			}
		})
	}
	return func() {
		close(done)
		_ = all.Wait() // they return nil
	}
}

// speak announces a node's blocks and the end of the table, and sends KEEPALIVEs until the session ends.
func speak(others *meshtest.Node, i int, done <-chan struct{}) {
	const hold, restart, localPref = 90, 120, 100
	address := bigNodeAddress(i)
	var conn net.Conn
	err := others.Do(func() (err error) {
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, 0)), Timeout: 5 * time.Second}
		conn, err = dialer.Dial("tcp", agentOnLink+":179")
		return err
	})
	if err != nil {
		return
	}
	defer conn.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, conn) // until the session ends in any way
		close(ended)
	}()
	var blocks []netip.Prefix
	for b := range blocksPerNode {
		blocks = append(blocks, bigBlock(blocksPerNode*i+b))
	}
	keepalive := bgptest.Message(bgptest.Keepalive)
	next := append(bgptest.OpenMessage(64512, address, true, hold, restart), keepalive...)
	next = append(next, bgptest.UpdateMessage(address, localPref, blocks...)...)
	next = append(next, bgptest.Message(bgptest.Update, 0, 0, 0, 0)...)
	tick := time.NewTicker(hold * time.Second / 3)
	defer tick.Stop()
	for {
		if _, err := conn.Write(next); err != nil {
			return
		}
		next = keepalive
		select {
		case <-tick.C:
		case <-ended:
			return
		case <-done:
			return
		}
	}
}

// fill creates nodes up to count, and three blocks for each. The agent has permanent entries of their neighbours: other
// entries count towards the kernel's limit of 1,024, which all namespaces share.
func fill(t *testing.T, c *meshtest.Cluster, agent *meshtest.Node, from, count int) {
	t.Helper()
	post := func(path string, obj []byte, err error) error {
		if err == nil {
			_, err = labtest.Send(c.Admin, "POST", path, string(obj))
		}
		return err
	}
	in := labtest.Group(t)
	var g errgroup.Group
	g.SetLimit(16)
	var neighbours strings.Builder
	for i := from; i < count; i++ {
		fmt.Fprintf(&neighbours, "neigh add %s lladdr %s dev eth0 nud permanent\n", bigNodeAddress(i), othersMAC)
		g.Go(func() error {
			name := fmt.Sprintf("ip-10-251-%d-%d.eu-central-1.compute.internal", i/250, i%250+1)
			text, err := json.Marshal(bigNode(name, i))
			if err := post("/api/v1/nodes", text, err); err != nil {
				return err
			}
			for b := range blocksPerNode {
				text, err := in.Manifest(bigAffinity(name, blocksPerNode*i+b))
				if err := post("/apis/"+string(in)+"/blockaffinities", text, err); err != nil {
					return err
				}
			}
			return nil
		})
	}
	errtest.Must(t, g.Wait())
	file := filepath.Join(t.TempDir(), "neighbours")
	errtest.Must(t, os.WriteFile(file, []byte(neighbours.String()), 0o600))
	agent.Run(t, "ip", "-batch", file)
}

// bigNode returns a node as clouds create them: 20 labels, ten annotations, and the images that its kubelet reports.
func bigNode(name string, i int) object {
	labels := object{
		"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
		"beta.kubernetes.io/arch": "amd64", "node.kubernetes.io/instance-type": "m6i.2xlarge", "beta.kubernetes.io/instance-type": "m6i.2xlarge",
		"topology.kubernetes.io/region": "eu-central-1", "failure-domain.beta.kubernetes.io/region": "eu-central-1",
		"topology.kubernetes.io/zone":            fmt.Sprintf("eu-central-1%c", 'a'+i%3),
		"failure-domain.beta.kubernetes.io/zone": fmt.Sprintf("eu-central-1%c", 'a'+i%3),
		"topology.ebs.csi.aws.com/zone":          fmt.Sprintf("eu-central-1%c", 'a'+i%3),
		"k8s.io/cloud-provider-aws":              "3f2b7c5e0a6d4b1f9a8c7e6d5b4a3f2e",
		"kops.k8s.io/instancegroup":              "workers", "node-role.kubernetes.io/node": "", "team.example.com/owner": "platform",
		"node.example.com/pool": fmt.Sprintf("pool-%d", i%10), "example.com/rack": fmt.Sprintf("rack-%d", i%40),
		"example.com/generation": "7", "example.com/lifecycle": "spot",
	}
	address := bigNodeAddress(i)
	annotations := object{
		"projectcalico.org/IPv4Address":        address.String() + "/16",
		"projectcalico.org/IPv4IPIPTunnelAddr": fmt.Sprintf("10.244.%d.%d", i/64, i%64*4),
		"node.alpha.kubernetes.io/ttl":         "15", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
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
			fmt.Sprintf("registry.example.com/platform/service-%d@sha256:%064x", k, k),
			fmt.Sprintf("registry.example.com/platform/service-%d:v1.%d.0", k, i%7),
		}, "sizeBytes": 100_000_000 + k})
	}
	return object{
		"metadata": object{"name": name, "labels": labels, "annotations": annotations},
		"spec": object{"podCIDR": fmt.Sprintf("10.%d.%d.0/24", 100+i/250, i%250),
			"providerID": fmt.Sprintf("aws:///eu-central-1a/i-%017x", i)},
		"status": object{"images": images,
			"addresses": []object{{"type": "InternalIP", "address": address.String()}, {"type": "Hostname", "address": name}}},
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
func bigAffinity(node string, i int) *api.BlockAffinity {
	cidr := bigBlock(i)
	labels := names.AffinityLabels(node, api.AffinityHost, cidr)
	again, _ := json.Marshal(object{"labels": labels}) // texts alone
	return &api.BlockAffinity{
		Meta: api.Meta{Name: names.Affinity(node, cidr), Labels: labels, Annotations: map[string]string{names.AnnotationMetadata: string(again)}},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: node, Type: api.AffinityHost, CIDR: cidr.String()},
	}
}
