package mesh

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// loadAgents is suitable for a machine on which other tests run, too.
var loadAgents = flag.Int("load-agents", 6, "agents of TestPolicyUnderLoad")

// The load of TestPolicyUnderLoad: how long it goes on at rest and with agents that are killed.
const (
	loadSpan  = 15 * time.Second
	killEvery = 1500 * time.Millisecond
)

// Pods of a node without an agent are created and deleted as objects only. To agents they are peers like any others,
// and need no links on this machine: with them 50 pods per second come and go.
const (
	distantWriters = 4
	distantLife    = 80 * time.Millisecond // 45 per second, where the API server is not slower
)

// Pods come and go at 50 per second, if the machine can, and policies change every second, first with all agents
// running, then while one after the other is killed and restarted. Allowed traffic loses no packet, and no denied
// packet arrives. It does not run in parallel: it measures how soon a pod is allowed and a policy in force. A benchmark
// measures only that, with five agents, 20 pods per second, and one policy, and again with 500 GlobalNetworkPolicies.
func TestPolicyUnderLoad(t *testing.T) {
	tier.All(t)
	l := newLoad(t, newGuarded(t, meshtest.Repeat(*loadAgents, 5)))
	l.places, l.life = meshtest.Repeat(2, 4), time.Duration(meshtest.Repeat(500, 550))*time.Millisecond
	l.every = time.Duration(meshtest.Repeat(0, 1000)) * time.Millisecond // four on each of five nodes: 20 per second
	l.phase(t, "agents are there", loadSpan*time.Duration(meshtest.Repeat(1, 3)), nil)
	l.report(t, "")
	if meshtest.Measuring() {
		l.tiers(t, 500)
		l.appear, l.closing, l.opening = nil, nil, nil
		l.phase(t, "GlobalNetworkPolicies are there", 3*loadSpan, nil)
		l.report(t, ", with 500 GlobalNetworkPolicies in three tiers")
		return
	}
	l.phase(t, "agents are killed", loadSpan, l.kill)
	l.allowed.Intact(t)
	l.nothingDenied(t)
}

// load is the state of TestPolicyUnderLoad.
type load struct {
	*guarded
	servers []*meshtest.Pod
	plain   []*meshtest.Pod
	allowed meshtest.Traffic
	gates   []*sender // one to a pod on each node that a policy closes and opens
	places  int       // for pods that come and go, on each node
	life    time.Duration
	every   time.Duration // minimum time from one pod of a place to the next
	lock    sync.Mutex
	denied  []*sender
	appear  []time.Duration // from a pod's object until all other nodes admit the pod
	closing []time.Duration // from a policy's creation until it denies on all nodes
	opening []time.Duration // from a policy's deletion until it denies on no node
	pods    int             // finished ones
}

func newLoad(t *testing.T, g *guarded) *load {
	t.Helper()
	l := &load{guarded: g}
	l.policies(t)
	var friends, foes, caged []*meshtest.Pod
	for i, n := range g.nodes {
		one := func(kind string, ordinal int) *meshtest.Pod {
			return g.permanent(t, n, fmt.Sprint(kind, "-", i), ordinal, map[string]string{"role": kind})
		}
		l.servers, l.plain = append(l.servers, one("server", 5)), append(l.plain, one("plain", 6))
		friends, foes, caged = append(friends, one("friend", 7)), append(foes, one("foe", 8)), append(caged, one("caged", 9))
	}
	for i := range meshtest.Repeat(len(g.nodes), 0) {
		next := (i + 1) % len(g.nodes)
		l.allowed = append(l.allowed, meshtest.StartStream(t, fmt.Sprintf("friend-%d to server-%d", i, next), friends[i], l.servers[next]))
		l.deny(g.send(t, fmt.Sprintf("foe-%d to server-%d", i, next), foes[i].NS, l.servers[next].V4, 5*time.Millisecond))
		l.deny(g.send(t, fmt.Sprintf("caged-%d to plain-%d", i, next), caged[i].NS, l.plain[next].V4, 5*time.Millisecond))
	}
	for i, n := range g.nodes {
		gate := g.permanent(t, n, fmt.Sprint("gate-", i), 10, map[string]string{"role": "gate"})
		l.gates = append(l.gates, g.send(t, fmt.Sprint("to gate-", i), l.plain[(i+1)%len(l.plain)].NS, gate.V4, 5*time.Millisecond))
	}
	meshtest.Eventually(t, func() error {
		if !l.arrived.all(l.gates) {
			return errors.New("a gate is closed")
		}
		return nil
	})
	return l
}

// deny counts every packet of a sender as an error.
func (l *load) deny(s *sender) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.denied = append(l.denied, s)
}

// phase runs pods and policies for a while, and the caller's more.
func (l *load) phase(t *testing.T, name string, span time.Duration, more func(context.Context, *testing.T)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	before, began := l.pods, time.Now()
	var all sync.WaitGroup
	for i := range l.nodes {
		for place := range l.places {
			ns := netnstest.New(t)
			l.arrived.listen(t, ns)
			all.Go(func() { l.comeAndGo(ctx, t, i, place, ns) })
		}
	}
	if !meshtest.Measuring() {
		all.Go(func() { l.changePolicies(ctx, t) })
		for i := range distantWriters {
			all.Go(func() { l.comeAndGoElsewhere(ctx, t, i) })
		}
	}
	all.Go(func() { l.openAndClose(ctx, t) })
	if more != nil {
		more(ctx, t)
	}
	all.Wait()
	rate := float64(l.pods-before) / time.Since(began).Seconds()
	t.Logf("%s: %d pods came and went, %.0f per second", name, l.pods-before, rate)
	meshtest.Record("pods that come and go", "per second", rate)
}

// roles are the labels of successive pods: only pods with the first may send to servers.
var roles = []map[string]string{{"role": "friend"}, {"role": "foe"}, {"role": "friend", "outlaw": "yes"}}

// comeAndGo runs one pod after the other in a place of a node. An address is reused after some seconds.
func (l *load) comeAndGo(ctx context.Context, t *testing.T, node, place int, ns *netnstest.NS) {
	const each = 10 // addresses of a place
	n := l.nodes[node]
	//nolint:forbidigo // not all pods come at once
	time.Sleep(l.every * time.Duration(node*l.places+place) / time.Duration(len(l.nodes)*l.places))
	for i := 0; ctx.Err() == nil; i++ {
		labels := map[string]string{"isolated": "yes"}
		role := (i + place) % meshtest.Repeat(len(roles), 1)
		for k, v := range roles[role] {
			labels[k] = v
		}
		p := passing{load: l, node: n, ns: ns, name: fmt.Sprintf("passing-%d-%d-%d", node, place, time.Now().UnixNano()),
			addr: address(n, 12+each*place+i%each), labels: labels, allowed: role == 0, servers: l.others(node),
			poker: l.plain[(node+2)%len(l.plain)]}
		began := time.Now()
		if err := p.live(t); err != nil {
			t.Errorf("%s: %v", p.name, err)
			return
		}
		time.Sleep(l.every - time.Since(began)) //nolint:forbidigo // the load's pace
	}
}

// others returns the servers of the other nodes, from the next node on.
func (l *load) others(node int) []*meshtest.Pod {
	return slices.Concat(l.servers[node+1:], l.servers[:node])
}

// comeAndGoElsewhere runs one pod after the other at a node without an agent. An address is reused at once, with other
// labels.
func (l *load) comeAndGoElsewhere(ctx context.Context, t *testing.T, writer int) {
	elsewhere := &meshtest.Node{Name: "elsewhere"}
	addr := netip.AddrFrom4([4]byte{10, 90, 200, byte(1 + writer)})
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("elsewhere-%d-%d", writer, time.Now().UnixNano())
		err := l.register(t, elsewhere, name, addr, roles[i%len(roles)])
		time.Sleep(distantLife) //nolint:forbidigo // a pod's life
		if err == nil {
			err = l.client.CoreV1().Pods(guardedNamespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		l.gone()
	}
}

// gone counts a pod that has come and gone.
func (l *load) gone() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.pods++
}

// passing is a pod that exists for a moment.
type passing struct {
	*load
	node    *meshtest.Node
	ns      *netnstest.NS
	name    string
	addr    netip.Addr
	labels  map[string]string
	allowed bool // to send to servers
	servers []*meshtest.Pod
	poker   *meshtest.Pod // no policy allows it to send to the pod
}

// live connects the pod before the agent may know it, has it send, and removes it.
func (p *passing) live(t *testing.T) error {
	wires := wiring(p.ns, p.name, p.addr)
	if err := p.node.Do(func() error { _, err := podnet.Setup(t.Context(), wires); return err }); err != nil {
		return err
	}
	poked := p.send(t, fmt.Sprintf("%s to %s", p.poker.V4, p.name), p.poker.NS, p.addr,
		time.Duration(meshtest.Repeat(10, 500))*time.Millisecond)
	p.deny(poked)
	sends := p.sendToServers(t)
	if err := p.register(t, p.node, p.name, p.addr, p.labels); err != nil {
		return err
	}
	came := time.Now()
	var late error
	if p.allowed {
		late = p.appeared(sends, came, soon(t, func() bool { return p.arrived.all(sends) }))
		late = errors.Join(late, endAll(sends))
		sends = nil
	}
	time.Sleep(p.life - time.Since(came)) //nolint:forbidigo // a pod's life
	return errors.Join(late, poked.end(), endAll(sends), p.leave(t, wires))
}

// sendToServers sends to the servers of all other nodes, or to only one if sending is denied.
func (p *passing) sendToServers(t *testing.T) (all []*sender) {
	to := p.servers
	if !p.allowed {
		to = to[:1]
	}
	for _, server := range to {
		s := p.send(t, fmt.Sprint(p.name, p.labels, " to ", server.V4), p.ns, server.V4, 5*time.Millisecond)
		if all = append(all, s); !p.allowed {
			p.deny(s)
		}
	}
	return all
}

// appeared records how long it took until all nodes admitted the pod, if they did.
func (p *passing) appeared(sends []*sender, came time.Time, all bool) error {
	if !all {
		return fmt.Errorf("is not let through by all nodes within %v", time.Since(came))
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	p.appear = append(p.appear, max(0, p.arrived.begun(sends).Sub(came)))
	return nil
}

func (p *passing) leave(t *testing.T, wires podnet.Config) error {
	err := p.client.CoreV1().Pods(guardedNamespace).Delete(t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	return errors.Join(err, p.node.Do(func() error {
		_, err := podnet.Teardown(t.Context(), wires)
		p.gone()
		return err
	}))
}

// kill kills one agent after the other and restarts it. Each was ready before: otherwise an agent on a busy machine
// would achieve nothing between two kills, and no pod would ever be admitted by all nodes.
func (l *load) kill(ctx context.Context, t *testing.T) {
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(killEvery):
		}
		n := l.nodes[i%len(l.nodes)]
		if !soon(t, func() bool { return n.Probe("/readyz") == nil }) {
			t.Errorf("%s: the agent is not ready", n.Name)
			return
		}
		n.Signal(t, syscall.SIGKILL)
		n.Start(t, []string{meshtest.Build, meshtest.AnotherBuild}[i/len(l.nodes)%2])
	}
}

// openAndClose closes and opens a pod of each node by a policy, and measures how soon that is in force.
func (l *load) openAndClose(ctx context.Context, t *testing.T) {
	policies := l.client.NetworkingV1().NetworkPolicies(guardedNamespace)
	for ctx.Err() == nil {
		if _, err := policies.Create(t.Context(), isolate("gate", "role", "gate"), metav1.CreateOptions{}); err != nil {
			t.Errorf("close the gates: %v", err)
			return
		}
		closed := time.Now()
		if !soon(t, l.silent()) {
			t.Error("the gates do not close")
			return
		}
		last := l.arrived.ended(l.gates)
		l.arrived.forget(l.gates)
		if err := policies.Delete(t.Context(), "gate", metav1.DeleteOptions{}); err != nil {
			t.Errorf("open the gates: %v", err)
			return
		}
		opened := time.Now()
		if !soon(t, func() bool { return l.arrived.all(l.gates) }) {
			t.Error("the gates do not open")
			return
		}
		l.closing = append(l.closing, max(0, last.Sub(closed)))
		l.opening = append(l.opening, max(0, l.arrived.begun(l.gates).Sub(opened)))
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the load's pace
	}
}

// silent returns a function that reports whether fifty packets were sent to each gate since the last arrival: a time
// alone is unreliable where a busy machine stops the sender.
func (l *load) silent() func() bool {
	counts, sent := make([]int, len(l.gates)), make([]int64, len(l.gates))
	return func() bool {
		quiet := true
		for i, gate := range l.gates {
			if now := l.arrived.from(gate).count; now != counts[i] {
				counts[i], sent[i] = now, gate.sent.Load()
			}
			quiet = quiet && gate.sent.Load()-sent[i] >= 50
		}
		return quiet
	}
}

// soon waits until is returns true.
func soon(t *testing.T, is func() bool) bool {
	end, tick := time.Now().Add(meshtest.Patience*meshtest.TimeScale), time.Tick(5*time.Millisecond)
	for ; t.Context().Err() == nil && time.Now().Before(end); <-tick {
		if is() {
			return true
		}
	}
	return false
}

// report logs the measured times so far; their names end in where.
func (l *load) report(t *testing.T, where string) {
	for _, one := range []struct {
		name string
		all  []time.Duration
	}{
		{"a pod that appears, until all other nodes let it through", l.appear},
		{"a policy applied, until it denies on all nodes", l.closing},
		{"a policy removed, until no node denies any more", l.opening},
	} {
		if len(one.all) < meshtest.Repeat(1, 5) { // a measurement needs several, the test one; a busy machine has few
			t.Errorf("%s: %d measured", one.name, len(one.all))
			continue
		}
		slices.Sort(one.all)
		t.Logf("%s%s, under load: %s", one.name, where, describe(one.all))
		meshtest.RecordTimes(one.name+where, one.all...)
	}
}

// nothingDenied fails the test if a packet of a denied sender has arrived.
func (l *load) nothingDenied(t *testing.T) {
	t.Helper()
	sent := int64(0)
	for _, s := range l.denied {
		sent += s.sent.Load()
		if came := l.arrived.from(s); came.count > 0 {
			t.Errorf("%s: %d of %d packets got through, the last after %v, want none", s.name, came.count, s.sent.Load(), came.last.Sub(came.first))
		}
	}
	t.Logf("%d packets of %d senders were to be denied, %d pods came and went", sent, len(l.denied), l.pods)
	if sent < 1000 {
		t.Errorf("only %d packets were to be denied", sent)
	}
}

// isolate returns a policy that allows the pods with a label to receive nothing.
func isolate(name, key, value string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{key: value}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}}
}

// admit returns a policy that allows servers to receive from pods of a role, at a range of ports.
func admit(name, role string, first, last int32) *networkingv1.NetworkPolicy {
	p := isolate(name, "role", "server")
	udp, from := corev1.ProtocolUDP, intstr.FromInt32(first)
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": role}}}},
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp, Port: &from, EndPort: &last}},
	}}
	return p
}

// tiers creates GlobalNetworkPolicies in three tiers for all pods with a role. Each denies traffic that no pod sends,
// and all leave the rest to NetworkPolicies.
func (l *load) tiers(t *testing.T, policies int) {
	t.Helper()
	create := func(kind, resource, name string, spec map[string]any) {
		t.Helper()
		_, err := l.objects.Resource(labtest.KindOf(t, resource)).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": string(labtest.Group(t)), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
		}}, metav1.CreateOptions{})
		errtest.Must(t, err)
	}
	names := []string{"first", "second", "third"}
	for i, name := range names {
		create("Tier", "tiers", name, map[string]any{"order": int64(100 * (i + 1)), "defaultAction": "Pass"})
	}
	for i := range policies {
		tier := names[i%len(names)]
		rule := map[string]any{"action": "Deny", "source": map[string]any{"selector": fmt.Sprintf("nobody == '%d'", i)}}
		create("GlobalNetworkPolicy", "globalnetworkpolicies", fmt.Sprintf("%s.%d", tier, i), map[string]any{
			"tier": tier, "order": int64(i), "selector": "has(role)", "types": []any{"Ingress"}, "ingress": []any{rule},
		})
	}
}

var clusterPolicies = schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha2",
	Resource: "clusternetworkpolicies"}

// policies creates the permanent policies.
func (l *load) policies(t *testing.T) {
	t.Helper()
	caged := isolate("caged", "role", "caged")
	caged.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	for _, p := range []*networkingv1.NetworkPolicy{isolate("isolated", "isolated", "yes"), admit("friends", "friend", 1, 65535), caged} {
		if _, err := l.client.NetworkingV1().NetworkPolicies(guardedNamespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.objects.Resource(clusterPolicies).Create(t.Context(), outlaws(0), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// outlaws returns a policy of the cluster that denies traffic which a NetworkPolicy allows. more is how many additional
// rules it has, which match no pod.
func outlaws(more int) *unstructured.Unstructured {
	rule := func(name, label, value string) any {
		pods := map[string]any{"namespaceSelector": map[string]any{}, "podSelector": map[string]any{"matchLabels": map[string]any{label: value}}}
		return map[string]any{"name": name, "action": "Deny", "from": []any{map[string]any{"pods": pods}}}
	}
	ingress := []any{}
	for i := range more {
		ingress = append(ingress, rule(fmt.Sprint("nobody-", i), "nobody", fmt.Sprint(i)))
	}
	subject := map[string]any{"namespaceSelector": map[string]any{},
		"podSelector": map[string]any{"matchLabels": map[string]any{"role": "server"}}}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": clusterPolicies.Group + "/" + clusterPolicies.Version, "kind": "ClusterNetworkPolicy",
		"metadata": map[string]any{"name": "outlaws"},
		"spec": map[string]any{"tier": "Admin", "priority": int64(10), "subject": map[string]any{"pods": subject},
			"ingress": append(ingress, rule("outlaws", "outlaw", "yes"))},
	}}
}

// changePolicies changes one policy a second; each selects pods whose packets are counted, and none changes the allowed
// traffic.
func (l *load) changePolicies(ctx context.Context, t *testing.T) {
	policies := l.client.NetworkingV1().NetworkPolicies(guardedNamespace)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		var err error
		switch i % 4 {
		case 0:
			more := admit(fmt.Sprintf("nobody-%d", time.Now().UnixNano()), fmt.Sprint("nobody-", i), 9000, int32(9001+i))
			more.Labels = map[string]string{"nobody": "yes"}
			_, err = policies.Create(t.Context(), more, metav1.CreateOptions{})
		case 1:
			friends := admit("friends", "friend", 1, 65535)
			friends.Spec.Ingress = append(friends.Spec.Ingress, admit("", fmt.Sprint("nobody-", i), int32(100+i), 8000).Spec.Ingress...)
			_, err = policies.Update(t.Context(), friends, metav1.UpdateOptions{})
		case 2:
			changed := outlaws(i % 8)
			var now *unstructured.Unstructured
			if now, err = l.objects.Resource(clusterPolicies).Get(t.Context(), "outlaws", metav1.GetOptions{}); err == nil {
				changed.SetResourceVersion(now.GetResourceVersion())
				_, err = l.objects.Resource(clusterPolicies).Update(t.Context(), changed, metav1.UpdateOptions{})
			}
		case 3:
			err = policies.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "nobody"})
		}
		if err != nil {
			t.Errorf("change policies: %v", err)
		}
	}
}
