package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// subject is a measured CNI plugin.
type subject struct {
	name    string
	program string
	// conf is the configuration of one execution.
	conf func(c *cluster, n *node, s slot) ([]byte, error)
	// Whether it has DEL, and requirements.
	del     bool
	assigns bool // assigns an exclusive address
	facts   bool // has the agent's facts on the node
	asksAPI bool
	group   groups.Group // where it has its objects
}

// Names of subjects, by which limits find their figures.
const (
	nameEmpty   = "floor: an empty Go program"
	nameGet     = "floor: one authenticated GET"
	nameVeth    = "floor: veth, address, routes"
	namePtp     = "ptp + host-local"
	nameCalico  = "calico"
	nameNoFacts = "calico without facts"
)

// references returns the subjects with which every plugin is compared.
func references() []subject {
	return []subject{
		{name: nameEmpty, program: "empty", conf: none},
		{name: nameGet, program: "get", asksAPI: true, conf: getConf},
		{name: nameVeth, program: "veth", del: true, conf: vethConf},
		{name: namePtp, program: "ptp", del: true, assigns: true, conf: ptpConf},
	}
}

// own returns Tortie's plugins.
func own() []subject {
	plugin := subject{
		name: nameCalico, program: "calico", del: true, assigns: true, asksAPI: true, facts: true, conf: ownConf, group: groups.V1,
	}
	without := plugin
	without.name, without.facts = nameNoFacts, false
	return []subject{plugin, without}
}

// foreign returns another plugin, by its configuration in a file.
func foreign(path string) (subject, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return subject{}, fmt.Errorf("-conf: %w", err)
	}
	var head struct{ Type, Name string }
	if err := json.Unmarshal(text, &head); err != nil || head.Type == "" {
		return subject{}, fmt.Errorf("-conf %s: no configuration of one plugin with its type (%w)", path, err)
	}
	conf := func(_ *cluster, n *node, _ slot) ([]byte, error) {
		r := strings.NewReplacer("__KUBECONFIG_FILEPATH__", kubeconfigPath, "__KUBERNETES_NODE_NAME__", n.name)
		return []byte(r.Replace(string(text))), nil
	}
	return subject{name: head.Type + " of -conf", program: head.Type, del: true, assigns: true, asksAPI: true, conf: conf}, nil
}

func none(*cluster, *node, slot) ([]byte, error) { return []byte("{}"), nil }

func getConf(c *cluster, n *node, s slot) ([]byte, error) {
	return json.Marshal(map[string]string{
		"server": c.client.server, "ca": string(c.ca), "token": c.token,
		"path": "/api/v1/namespaces/" + namespace + "/pods/" + podName(n, s),
	})
}

func vethConf(_ *cluster, _ *node, s slot) ([]byte, error) {
	return json.Marshal(map[string]string{"link": fmt.Sprintf("veth%d", s.index), "address": fmt.Sprintf("10.245.0.%d", s.index+1)})
}

func ptpConf(_ *cluster, n *node, _ slot) ([]byte, error) {
	return json.Marshal(object{
		"cniVersion": "1.0.0", "name": "reference", "type": "ptp",
		"ipam": object{"type": "host-local", "subnet": fmt.Sprintf("10.246.%d.0/24", n.index)},
	})
}

// ownConf returns the configuration that the install container writes, with a log on the node.
func ownConf(_ *cluster, n *node, _ slot) ([]byte, error) { return json.Marshal(ownConfig(n)) }

func ownConfig(n *node) object {
	return object{
		"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "info", "log_file_path": logPath,
		"datastore_type": "kubernetes", "nodename": n.name, "mtu": 1440,
		"ipam": object{"type": "calico-ipam"}, "policy": object{"type": "k8s"}, "kubernetes": object{"kubeconfig": kubeconfigPath},
	}
}

// sandbox is one attempt to start a pod, named by the container ID.
type sandbox struct {
	subject
	*node
	slot
	container string
}

func newSandbox(sub subject, n *node, s slot) sandbox {
	var id [32]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return sandbox{subject: sub, node: n, slot: s, container: hex.EncodeToString(id[:])}
}

// execution returns the process that a runtime starts for a verb.
func (s sandbox) execution(c *cluster, verb string) (execution, error) {
	stdin, err := s.conf(c, s.node, s.slot)
	if err != nil {
		return execution{}, fmt.Errorf("configuration of %s: %w", s.subject.name, err)
	}
	return execution{program: cniBin + "/" + s.program, stdin: stdin, env: []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + s.container, "CNI_NETNS=" + s.slot.path, "CNI_IFNAME=eth0", "CNI_PATH=" + cniBin,
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s",
			namespace, podName(s.node, s.slot), s.container, s.slot.uid),
	}}, nil
}

// do executes a verb and returns the assigned address, if any.
func (s sandbox) do(c *cluster, verb string) (cost, string, error) {
	e, err := s.execution(c, verb)
	if err != nil {
		return cost{}, "", err
	}
	took, stdout, err := s.node.run(e)
	if err != nil || verb != "ADD" || !s.assigns {
		return took, "", err
	}
	var result struct{ IPs []struct{ Address string } }
	if err := json.Unmarshal(stdout, &result); err != nil || len(result.IPs) == 0 {
		return took, "", fmt.Errorf("%s: its result %q has no address (%v)", s.subject.name, stdout, err) //nolint:errorlint // it may be nil
	}
	return took, result.IPs[0].Address, nil
}

// distinct returns an error if an address was assigned twice; "" is none.
func distinct(addresses []string) error {
	seen := map[string]bool{}
	for _, a := range addresses {
		if seen[a] && a != "" {
			return fmt.Errorf("address %s was assigned twice", a)
		}
		seen[a] = true
	}
	return nil
}

// prepare prepares the node for the subject: with current facts of the agent, or without. The facts are used within
// their maximum age.
func (s subject) prepare(c *cluster, n *node) error {
	if !s.facts {
		return n.Do(func() error {
			if err := os.Remove(facts.DefaultFile); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return nil
		})
	}
	f, err := c.factsOf(n, s.group)
	if err != nil {
		return fmt.Errorf("facts for %s: %w", n.name, err)
	}
	return n.Do(func() error { return facts.Write(facts.DefaultFile, f) })
}

// factsOf returns the facts that the node's agent would write now, for a cluster with its objects in a group and with
// policies enforced, for which the agent watches pods.
func (c *cluster) factsOf(n *node, in groups.Group) (facts.Facts, error) {
	f := facts.Facts{
		Group:   in,
		Written: time.Now(), AgentReady: true, DatastoreReady: true, Node: n.name,
		Config: ipam.DefaultConfig(), Namespaces: map[string]facts.Namespace{namespace: {}},
	}
	for _, s := range n.slots {
		f.PlainPods = append(f.PlainPods, s.uid)
	}
	var pools api.List[api.IPPool, *api.IPPool]
	var affinities api.BlockAffinityList
	var blocks api.IPAMBlockList
	for path, list := range map[string]any{"ippools": &pools, "blockaffinities": &affinities, "ipamblocks": &blocks} {
		if err := c.do(http.MethodGet, groupPath(in)+path, nil, list); err != nil {
			return f, err
		}
	}
	free := map[string]int{}
	for _, b := range blocks.Items {
		free[b.Spec.CIDR] = len(b.Spec.Unallocated)
	}
	for _, p := range pools.Items {
		p.Meta = api.Meta{Name: p.Name}
		f.Pools = append(f.Pools, p)
	}
	for _, a := range affinities.Items {
		if a.Spec.Node != n.name || !a.Confirmed() {
			continue
		}
		if _, err := netip.ParsePrefix(a.Spec.CIDR); err != nil {
			return f, err
		}
		claim := facts.Affinity{BlockAffinity: a}
		if room, ok := free[a.Spec.CIDR]; ok && room == 0 {
			claim.Free = &room // the agent derives a block's free addresses from its own kernel only
		}
		f.Affinities = append(f.Affinities, claim)
	}
	return f, nil
}
