package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// The world of the agent: pods of the agent's node, policies, and groups of pods, each of which 20 policies select.
const (
	policyNamespace = "policies"
	localPods       = 100
	policyCount     = 1000
	globalCount     = 500
	podGroups       = policyCount / 20
	podPace         = 50 * time.Millisecond // between pods that come, and between changes of no effect
)

// policyAgent is one run of the agent with policies.
type policyAgent struct {
	what   string
	start  time.Duration // CPU until policies are in force
	took   time.Duration // until then
	perPod time.Duration // CPU for one more pod
	writes uint32        // of the kernel, for changes of no effect
	size   memory
}

// policyNode is a node with a running agent.
type policyNode struct {
	*node
	subject subject
	cmd     *exec.Cmd
	log     bytes.Buffer
}

// newPolicyNode returns when the agent is ready.
func (b *bench) newPolicyNode(ctx context.Context, index int, mode string, pods int) (_ *policyNode, err error) {
	p := &policyNode{subject: own()[0]}
	if p.node, err = newNode(b.cluster.underlay, index, b.dir, pods); err != nil {
		return nil, err
	}
	p.subject.conf = func(_ *cluster, n *node, _ slot) ([]byte, error) { return policyConf(n, mode == "on") }
	if err := p.start(ctx, b.cluster, mode); err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

func (p *policyNode) start(ctx context.Context, c *cluster, mode string) error {
	var request struct{ Status struct{ Token string } }
	err := c.do(http.MethodPost, systemPath+"/tortie-node/token", object{"spec": object{}}, &request)
	if err != nil {
		return err
	}
	const kubeconfig = "/etc/agent-kubeconfig"
	err = c.do(http.MethodPost, "/api/v1/nodes", object{"metadata": object{"name": p.name}}, nil)
	if err != nil && !strings.Contains(err.Error(), "HTTP 409") { // of the run before
		return err
	}
	err = errors.Join(p.write(kubeconfig, labtest.PluginKubeconfig(c.client.server, c.ca, request.Status.Token)),
		p.write(kubeconfigPath, labtest.PluginKubeconfig(c.client.server, c.ca, c.token)), c.createPods(p.node))
	if err != nil {
		return err
	}
	p.cmd = exec.Command(cniBin + "/node")
	p.cmd.Env = []string{"NODENAME=" + p.name, "IP=" + p.address(), "KUBECONFIG=" + kubeconfig, "NO_DEFAULT_POOLS=true", "LOG_LEVEL=warn", "TORTIE_POLICY=" + mode}
	p.cmd.Stderr = &p.log
	if err := p.Do(p.cmd.Start); err != nil {
		p.cmd = nil
		return fmt.Errorf("start the agent: %w", err)
	}
	if err := p.awaitReady(ctx, time.Now().Add(readyTime)); err != nil {
		return fmt.Errorf("agent with policies %s: %w", mode, err)
	}
	return nil
}

func (p *policyNode) end() {
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait() // the exit status does not matter
	}
	p.node.end()
}

// policyMetrics are the agent's, by short names.
var policyMetrics = map[string]*regexp.Regexp{
	"policies":  regexp.MustCompile(`(?m)^tortie_policy_policies ([0-9.e+]+)$`),
	"members":   regexp.MustCompile(`(?m)^tortie_policy_members ([0-9.e+]+)$`),
	"endpoints": regexp.MustCompile(`(?m)^tortie_policy_endpoints\{state="policed"\} ([0-9.e+]+)$`),
}

// await waits until metrics of the agent have these values.
func (p *policyNode) await(ctx context.Context, want map[string]int) error {
	for end := time.Now().Add(readyTime); ; time.Sleep(20 * time.Millisecond) {
		text, err := p.agentSays("/metrics")
		if err != nil {
			return fmt.Errorf("the agent's metrics: %w\n%s", err, tail(p.log.String()))
		}
		missing := ""
		for name, value := range want {
			if got, err := sumMetric(text, policyMetrics[name]); err != nil || got != value {
				missing += fmt.Sprintf(" %s is %d, want %d (%v)", name, got, value, err)
			}
		}
		if missing == "" {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("policies are not in force:%s\n%s", missing, tail(p.log.String()))
		}
	}
}

// policyConf is the section that the install container writes for an agent that enforces policies, or for one that does not.
func policyConf(n *node, enforced bool) ([]byte, error) {
	return ownConfWith(n, object{"policy_enforced": enforced, "policy_setup_timeout_seconds": map[bool]int{true: 5}[enforced]})
}

// runPolicyAgents runs the agent with policies that select few of its pods each, then with as many that select all, then with GlobalNetworkPolicies.
func (b *bench) runPolicyAgents(ctx context.Context) (all []policyAgent, err error) {
	home := fmt.Sprintf("bench-%d", policyIndex+2)
	progress(fmt.Sprintf("policy: making %d pods", b.size.pods))
	if err := b.cluster.makePeers(home, b.size.pods); err != nil {
		return nil, err
	}
	for i, kind := range []struct {
		what     string
		policies int
		make     func() error
	}{
		{"ten policies on each pod", policyCount, func() error { return b.cluster.makePolicies(false) }},
		{"1,000 policies on each pod", policyCount, func() error { return b.cluster.makePolicies(true) }},
		{"500 GlobalNetworkPolicies in three tiers on each pod", globalCount, b.cluster.makeGlobalPolicies},
	} {
		a := policyAgent{what: kind.what}
		if err := kind.make(); err != nil {
			return nil, err
		}
		if err := a.run(ctx, b, fmt.Sprint("more-", i), kind.policies); err != nil {
			return nil, fmt.Errorf("%s: %w", a.what, err)
		}
		all = append(all, a)
	}
	return all, nil
}

func (a *policyAgent) run(ctx context.Context, b *bench, more string, policies int) error {
	began := time.Now()
	p, err := b.newPolicyNode(ctx, policyIndex+2, "on", 0)
	if err != nil {
		return err
	}
	defer p.end()
	err = p.await(ctx, map[string]int{"policies": policies + addPolicies, "endpoints": localPods}) // some are of the part before
	if err != nil {
		return err
	}
	a.took = time.Since(began)
	if a.start, err = processorTime(p.cmd.Process.Pid); err != nil {
		return err
	}
	a.perPod, err = p.pace(b.size.morePods, func(i int) error {
		return b.cluster.do(http.MethodPost, podsPath, peer(fmt.Sprint(more, "-", i), "elsewhere", i, 200), nil)
	})
	if err != nil {
		return err
	}
	if a.writes, err = p.changeNothing(b, more); err != nil {
		return err
	}
	a.size, err = agentMemory(p.cmd.Process.Pid)
	return err
}

// changeNothing changes a label of pods that no policy reads, and returns how often the kernel's rules were written.
func (p *policyNode) changeNothing(b *bench, value string) (uint32, error) {
	before, err := p.generation()
	if err != nil {
		return 0, err
	}
	change := object{"metadata": object{"labels": object{"unread": value}}}
	_, err = p.pace(b.size.morePods, func(i int) error {
		return b.cluster.do(http.MethodPatch, fmt.Sprintf("%s/peer-%d", podsPath, localPods+i), change, nil)
	})
	if err != nil {
		return 0, err
	}
	after, err := p.generation()
	return after - before, err
}

// pace does something so many times at a pace, and returns the CPU that the agent uses for one.
func (p *policyNode) pace(count int, change func(i int) error) (time.Duration, error) {
	before, err := processorTime(p.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	next := time.NewTicker(podPace)
	defer next.Stop()
	for i := range count {
		if err := change(i); err != nil {
			return 0, err
		}
		<-next.C
	}
	after, err := processorTime(p.cmd.Process.Pid)
	return (after - before) / time.Duration(count), err
}

// generation counts the transactions of nftables on the node.
func (n *node) generation() (g uint32, err error) {
	return g, n.Do(func() error {
		s, err := nlmsg.Open(unix.NETLINK_NETFILTER, time.Minute)
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Execute(nlmsg.Netfilter(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil), func(m nlmsg.Message) error {
			g = nlmsg.Number(nlmsg.Find(m.Body[nlmsg.SizeofNfgenmsg:], unix.NFTA_GEN_ID))
			return nil
		})
	})
}

const podsPath = "/api/v1/namespaces/" + policyNamespace + "/pods"

// makePeers makes pods, the first ones on a node.
func (c *cluster) makePeers(home string, count int) error {
	if err := c.do(http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": policyNamespace}}, nil); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(16)
	for i := range count {
		node := home
		if i >= localPods {
			node = fmt.Sprint("elsewhere-", i%100)
		}
		g.Go(func() error {
			return c.do(http.MethodPost, podsPath, peer(fmt.Sprint("peer-", i), node, i, 100), nil)
		})
	}
	return g.Wait()
}

// peer is a pod of the size that pods of a Deployment have.
func peer(name, node string, i, net int) object {
	var env []object
	for k := range 20 {
		env = append(env, object{"name": fmt.Sprint("SETTING_", k), "value": fmt.Sprintf("a value of an ordinary length, number %d", k)})
	}
	probe := object{"httpGet": object{"path": "/healthz", "port": 8080}, "periodSeconds": 10}
	return object{
		"metadata": object{
			"name": name, "labels": object{
				"group": fmt.Sprint("group-", i%podGroups), "local": fmt.Sprint("local-", i), "app.kubernetes.io/part-of": "shop", "pod-template-hash": "6d4b75cb6d", "tier": "backend",
			},
			"annotations": object{"cni.projectcalico.org/podIPs": fmt.Sprintf("10.%d.%d.%d/32", net, i>>8, i&255)},
		},
		"spec": object{"nodeName": node, "containers": []object{{
			"name": "web", "image": "registry.example/shop/web:1.2.3", "ports": []object{{"name": "http", "containerPort": 8080}}, "env": env,
			"livenessProbe": probe, "readinessProbe": probe, "resources": object{"requests": object{"cpu": "100m", "memory": "128Mi"}},
		}}},
	}
}

const networkPoliciesPath = "/apis/networking.k8s.io/v1/namespaces/" + policyNamespace + "/networkpolicies"

// makePolicies makes policies of five ports, in the place of others: dense, each selects all pods; else each of the node's pods has ten.
func (c *cluster) makePolicies(dense bool) error {
	if err := c.do(http.MethodDelete, networkPoliciesPath, nil, nil); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(16)
	for i := range policyCount {
		subject := object{}
		if !dense {
			subject = object{"matchLabels": object{"local": fmt.Sprint("local-", i%localPods)}}
		}
		// Of a name of its own, so that no two policies have the same set.
		peers := object{"matchExpressions": []object{{"key": "group", "operator": "In", "values": []string{fmt.Sprint("group-", i%podGroups), fmt.Sprint("nobody-", i)}}}}
		port := 1000 + 10*i
		p := networkPolicy(fmt.Sprint("policy-", i), subject, peers, port, port+2, port+4, port+6, port+8)
		g.Go(func() error { return c.do(http.MethodPost, networkPoliciesPath, p, nil) })
	}
	return g.Wait()
}

// makeGlobalPolicies makes GlobalNetworkPolicies for all pods of the namespace, in the place of the others. Each names a group: those of the first tier deny it
// everything, those of the second pass it on at three ports and deny the next group these, those of the last allow it three ports.
func (c *cluster) makeGlobalPolicies() error {
	custom := func(kind, name string, spec object) object {
		return object{"apiVersion": api.Group + "/v1", "kind": kind, "metadata": object{"name": name}, "spec": spec}
	}
	err := c.do(http.MethodDelete, networkPoliciesPath, nil, nil)
	for i, name := range []string{"first", "second"} {
		err = errors.Join(err, c.do(http.MethodPost, crdPath+"tiers", custom("Tier", name, object{"order": 100 + i, "defaultAction": "Pass"}), nil))
	}
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(16)
	for i := range globalCount {
		rule := func(action string, group int, ports ...int) object {
			r := object{"action": action, "source": object{"selector": fmt.Sprintf("group in {'group-%d', 'nobody-%d'}", group%podGroups, i)}}
			if len(ports) > 0 {
				r["protocol"], r["destination"] = "TCP", object{"ports": ports}
			}
			return r
		}
		spec := object{"tier": "default", "order": i, "types": []string{"Ingress"}, "selector": "projectcalico.org/namespace == '" + policyNamespace + "'"}
		switch port := 1000 + 10*i; i * 3 / globalCount {
		case 0:
			spec["tier"], spec["ingress"] = "first", []object{rule("Deny", i%10)}
		case 1:
			spec["tier"], spec["ingress"] = "second", []object{rule("Pass", i, port, port+2, port+4), rule("Deny", i+1, port, port+2, port+4)}
		default:
			spec["ingress"] = []object{rule("Allow", i, port, port+2, port+4)}
		}
		p := custom("GlobalNetworkPolicy", fmt.Sprint(spec["tier"], ".policy-", i), spec)
		g.Go(func() error { return c.do(http.MethodPost, crdPath+"globalnetworkpolicies", p, nil) })
	}
	return g.Wait()
}

// networkPolicy allows pods to connect to ports of pods.
func networkPolicy(name string, subject, peers object, ports ...int) object {
	var ingress []object
	for _, port := range ports {
		ingress = append(ingress, object{"ports": []object{{"port": port}}, "from": []object{{"podSelector": peers}}})
	}
	return object{"metadata": object{"name": name}, "spec": object{"podSelector": subject, "policyTypes": []string{"Ingress"}, "ingress": ingress}}
}

// judgeAgents judges what an agent with policies needs, and what ADD takes more there.
func (p *policyFigures) judgeAgents() []verdict {
	var all []verdict
	if len(p.adds.pairs) > 0 {
		with, without := p.adds.requests[0], p.adds.requests[1]
		all = append(append(all, judgeMore("time", more(p.adds.pairs, wall))...), judgeMore("CPU", more(p.adds.pairs, cpu))...)
		all = append(all, verdict{"ADD, requests to the API server where policies are enforced", fmt.Sprint(with), fmt.Sprintf("≤ %d, as without", without), with <= without})
	}
	for _, a := range p.agents {
		all = append(all,
			bounded("one more pod under 20 selectors, the agent's CPU, "+a.what, milliseconds(a.perPod), maxPodCPU, "ms"),
			bounded("the agent's memory at its peak, "+a.what, float64(a.size.peak)*1024/1e6, maxPolicyRSS/1e6, "MB"),
			verdict{"writes of the kernel by changes of pods of no effect, " + a.what, fmt.Sprint(a.writes), "0", a.writes == 0})
	}
	return all
}

// writeMore writes what is measured without a bound.
func (p *policyFigures) writeMore(w *bytes.Buffer) {
	var lines []string
	if len(p.adds.pairs) > 0 {
		lines = append(lines, describeADDs(p.adds.pairs))
	}
	for _, a := range p.agents {
		lines = append(lines, fmt.Sprintf("the agent, %s: in force %.1f s after its start, by %.2f s of CPU; %.1f MB in the end, %.1f anonymous", a.what, a.took.Seconds(),
			a.start.Seconds(), float64(a.size.rss)*1024/1e6, float64(a.size.anonymous)*1024/1e6))
	}
	for _, line := range lines {
		fmt.Fprintf(w, "- %s\n", line)
	}
	if len(lines) > 0 {
		w.WriteString("\n")
	}
	if len(p.load) > 0 {
		w.WriteString("Changes and load; median, 95th percentile and largest, in brackets how often:\n\n")
		writeFigures(w, p.load)
	}
}
