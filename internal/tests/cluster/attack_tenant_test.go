package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const (
	partTenant = "By a tenant's objects"
	arrived    = "the packets that reach the server"
	// outsider is an address of no node and no pod.
	outsider = "172.30.0.99"
	policies = crd + "globalnetworkpolicies"
	ofTenant = crd + "namespaces/tenant/"
)

// tenancy is the siege of a server, which an administrator's policies protect, by who may write objects of another
// namespace. Five send datagrams to the server all the time, each from a new port, and what reaches it is counted by
// sender: friend, of the server's namespace; evil and other, of the tenant's; outsider; and traffic, the pod on the
// thief's node.
type tenancy struct {
	*siege
	server *meshtest.Pod
	addr   map[string]string

	mu  sync.Mutex
	got map[string]int
}

func (s *siege) tenantsObjects(t *testing.T) {
	s.by["owner"] = client(t, s.RESTConfig(t), strings.TrimSpace(s.Kubectl(t, "create", "token", "owner", "--namespace", "tenant")))
	h := &tenancy{siege: s, server: s.inside(t, s.tenants["server"]), addr: map[string]string{}, got: map[string]int{}}
	to := netip.AddrPortFrom(h.server.V4, 9)
	conn := h.server.ListenUDP(t, to.String())
	go func() {
		for b := make([]byte, 64); ; {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			h.mu.Lock()
			h.got[string(b[:n])]++
			h.mu.Unlock()
		}
	}()
	for _, args := range [][]string{
		{"addr", "add", outsider + "/24", "dev", "eth0"},
		{"rule", "add", "from", outsider, "lookup", "99"},
		{"route", "add", "default", "via", s.is[victim].address, "table", "99"}, // like a router, without a tunnel
	} {
		s.hosts[thief].Run(t, "ip", args...)
		args[1] = "del"
		defer s.hosts[thief].Run(t, "ip", args...)
	}
	ctx, stop := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	defer senders.Wait()
	defer stop()
	begin := func(name, addr string, from *netnstest.NS) {
		h.addr[name] = addr
		senders.Go(func() { _ = from.Do(func() error { return send(ctx, name, addr, to) }) })
	}
	for _, name := range []string{"friend", "evil", "other"} {
		begin(name, s.tenants[name].Status.PodIP, s.inside(t, s.tenants[name]).NS)
	}
	begin("traffic", s.pod[thief].V4.String(), s.pod[thief].NS)
	begin("outsider", outsider, s.hosts[thief])
	for name := range h.addr {
		h.passes(t, name)
	}
	h.unlisted(t)
	h.joined(t)
	h.unnamed(t)
	h.sets(t)
	h.claim(t)
	h.stale(t)
	h.links(t)
}

// send sends datagrams that name their sender, each from a new port, so that none belongs to an earlier connection.
func send(ctx context.Context, name, from string, to netip.AddrPort) error {
	for tick := time.Tick(20 * time.Millisecond); ctx.Err() == nil; <-tick {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
		if conn, err := d.DialContext(ctx, "udp", to.String()); err == nil {
			_, _ = conn.Write([]byte(name)) // one that a policy denies is an error in some cases
			_ = conn.Close()
		}
	}
	return nil
}

func (h *tenancy) count(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.got[name]
}

// passes waits until some datagrams of a sender have reached the server.
func (h *tenancy) passes(t *testing.T, name string) {
	t.Helper()
	was := h.count(name)
	meshtest.Within(t, time.Minute, func() error {
		if got := h.count(name) - was; got < 20 {
			return fmt.Errorf("%d datagrams of %s have reached the server", got, name)
		}
		return nil
	})
}

// denied waits until no datagram of a sender reaches the server while friend's do.
func (h *tenancy) denied(t *testing.T, name string) {
	t.Helper()
	meshtest.Within(t, time.Minute, func() error {
		was := h.count(name)
		h.passes(t, "friend")
		if got := h.count(name) - was; got > 0 {
			return fmt.Errorf("%d datagrams of %s have reached the server", got, name)
		}
		return nil
	})
}

// attempt is an attack on policies that deny a sender.
type attempt struct {
	aim, tried, answer, who string
	policies                []object // specs; the first is of the lowest order
	seen                    string
	// do makes the attack, and waits until the agent of the server's node must know of it.
	do func(t *testing.T)
}

// attack fails the test if a datagram of a sender who is denied reaches the server in or after the attack.
func (h *tenancy) attack(t *testing.T, a attempt) {
	t.Helper()
	t.Run(a.aim, func(t *testing.T) {
		defer h.clean(t)
		for i, spec := range a.policies {
			h.protect(t, i, spec)
		}
		h.denied(t, a.who)
		was := h.count(a.who)
		a.do(t)
		h.passes(t, "friend")
		if got := h.count(a.who) - was; got > 0 {
			t.Errorf("%d datagrams of %s have reached the server", got, a.who)
		}
		h.inVain(t)
		h.record.add(row{part: partTenant, aim: a.aim, tried: a.tried, answer: a.answer, seen: a.seen})
	})
}

// protect creates a policy for the pods of the server's namespace.
func (h *tenancy) protect(t *testing.T, order int, spec object) {
	t.Helper()
	spec["order"] = order
	if spec["namespaceSelector"] == nil {
		spec["namespaceSelector"] = "projectcalico.org/name == 'team'"
	}
	h.must(t, request{by: "admin", verb: "POST", path: policies, body: custom("GlobalNetworkPolicy", fmt.Sprint("protect-", order), spec)})
}

// clean deletes all policies and sets.
func (h *tenancy) clean(t *testing.T) {
	t.Helper()
	for _, path := range []string{policies, ofTenant + "networkpolicies", ofTenant + "networksets"} {
		h.must(t, request{by: "admin", verb: "DELETE", path: path})
	}
}

func ingress(rules ...object) object { return object{"types": []string{"Ingress"}, "ingress": rules} }

func rule(action string, source object) object { return object{"action": action, "source": source} }

// friends allows the pod friend, by its address: for this no pods are listed.
func (h *tenancy) friends() object {
	return rule("Allow", object{"nets": []string{h.addr["friend"] + "/32"}})
}

// policy waits until the status of the server's node is as wanted, with all changes in force.
func (h *tenancy) policy(t *testing.T, want func(*nodestatus.Policy) bool) {
	t.Helper()
	meshtest.Within(t, time.Minute, func() error {
		r, err := h.status(victim)
		if err == nil && (r.Policy == nil || r.Policy.Waiting != nil || !want(r.Policy)) {
			err = fmt.Errorf("%s: %+v", victim, r.Policy)
		}
		return err
	})
}

// tells waits until the server's node reports a problem that contains words.
func (s *siege) tells(t *testing.T, words string) {
	t.Helper()
	meshtest.Within(t, time.Minute, func() error {
		r, err := s.status(victim)
		if err == nil && !slices.ContainsFunc(r.Problems, func(p string) bool { return strings.Contains(p, words) }) {
			err = fmt.Errorf("%s reports %q, want a problem with %q", victim, r.Problems, words)
		}
		return err
	})
}

// unlisted comes first: an agent that follows all pods once does so for long.
func (h *tenancy) unlisted(t *testing.T) {
	h.attack(t, attempt{
		aim: "send while the pods are not listed that an Allow leaves out", who: "evil",
		tried: "to a new policy, Allow all but role == 'untrusted', while agents may not list pods", policies: []object{ingress(h.friends())},
		answer: "denied; others are allowed once pods are listed", seen: victim + ": `node status`",
		do: func(t *testing.T) {
			list := h.withhold(t)
			defer h.passes(t, "other")
			defer list()
			h.protect(t, -1, ingress(rule("Allow", object{"notSelector": "role == 'untrusted'"})))
			h.tells(t, "as the API server has not listed them yet")
			h.passes(t, "friend")
		},
	})
}

// withhold takes from the agents the right to list pods, until list is called. What they follow goes on.
func (h *tenancy) withhold(t *testing.T) (list func()) {
	const path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tortie-node"
	all := field[[]any](h.get(t, path), "rules")
	without := slices.DeleteFunc(slices.Clone(all),
		func(r any) bool { return slices.Contains(field[[]any](r.(object), "resources"), any("pods")) })
	set := func(rules []any) {
		h.must(t, request{by: "admin", verb: "PATCH", path: path, body: object{"rules": rules}, what: "rules"})
	}
	set(without)
	return func() { set(all) }
}

// joined gives a policy of the tenant's the selection of the administrator's, but for two names that are one.
func (h *tenancy) joined(t *testing.T) {
	accounts := func(names ...string) object {
		return object{"serviceAccounts": object{"names": names}, "namespaceSelector": "all()"}
	}
	h.attack(t, attempt{
		aim: "an account `evil,worse`, in place of an administrator's Deny of evil and worse", who: "evil",
		tried:    "owner: POST networkpolicies, Deny from serviceAccounts.names: [\"evil,worse\"]",
		policies: []object{ingress(rule("Deny", accounts("evil", "worse")), object{"action": "Allow"})},
		answer:   "denied as before; the tenant's rule is closed", seen: victim + ": `node status`",
		do: func(t *testing.T) {
			h.first(t)
			spec := ingress(rule("Deny", accounts("evil,worse")))
			spec["selector"] = "app == 'first'"
			h.must(t, request{by: "owner", verb: "POST", path: ofTenant + "networkpolicies", body: custom("NetworkPolicy", "joined", spec)})
			h.tells(t, "is no service account's name")
			h.policy(t, func(p *nodestatus.Policy) bool { return p.Policies == 2 && p.Policed == 2 })
		},
	})
}

// first runs a pod of the tenant's with a link that sorts before the server's, so that its policies come first.
func (h *tenancy) first(t *testing.T) {
	t.Helper()
	link := func(namespace, name string) string {
		return podnet.HostVethName(podnet.DefaultVethPrefix, namespace, name)
	}
	name := ""
	for i := 0; name == "" || link("tenant", name) > link("team", "server"); i++ {
		name = fmt.Sprint("first", i)
	}
	p := idle(name, nil)
	p.Labels["app"] = "first"
	h.create(t, p)
	h.Kubectl(t, "wait", "pod", name, "--namespace", "tenant", "--for=condition=Ready", "--timeout="+patience.String())
	t.Cleanup(func() { h.gone(t, name) })
}

// create creates a pod with the tenant's token.
func (h *tenancy) create(t *testing.T, p *corev1.Pod) {
	t.Helper()
	p.APIVersion, p.Kind = "v1", "Pod"
	h.must(t, request{by: "owner", verb: "POST", path: core + "namespaces/tenant/pods", body: p})
}

func (h *tenancy) gone(t *testing.T, pod string) {
	if _, err := h.Do(context.Background(), "kubectl", "delete", "pod", pod, "--namespace", "tenant",
		"--ignore-not-found", "--now"); err != nil {
		t.Error(err)
	}
}

func (h *tenancy) unnamed(t *testing.T) {
	h.attack(t, attempt{
		aim: "send against a Deny of accounts by labels that has an empty list of names", who: "evil",
		tried: "serviceAccounts: {names: [], selector: role == 'untrusted'}",
		policies: []object{ingress(rule("Deny", object{"serviceAccounts": object{"names": []string{}, "selector": "role == 'untrusted'"}}),
			object{"action": "Allow"})},
		answer: "denied", seen: arrived,
		do: func(t *testing.T) { h.passes(t, "other") },
	})
}

// sets gives the tenant's NetworkSet the labels of an account's pods; another one's label counts.
func (h *tenancy) sets(t *testing.T) {
	set := func(name, of string, labels object) request {
		body := custom("NetworkSet", name, object{"nets": []string{h.addr[of] + "/32"}})
		body["metadata"].(object)["labels"] = labels
		return request{by: "owner", verb: "POST", path: ofTenant + "networksets", body: body}
	}
	posing := set("posing", "evil", object{"projectcalico.org/orchestrator": "k8s", "projectcalico.org/serviceaccount": "chief"})
	h.attack(t, attempt{
		aim: "a NetworkSet with the labels of an account's pods", who: "evil", tried: posing.String(),
		policies: []object{ingress(h.friends(), rule("Allow", object{"selector": "projectcalico.org/serviceaccount == 'chief' || has(known)"}))},
		answer:   "such labels do not count: denied", seen: arrived,
		do: func(t *testing.T) {
			h.must(t, posing)
			h.must(t, set("known", "other", object{"known": "yes"}))
			h.passes(t, "other")
		},
	})
}

// claim creates a pod that never starts, with an annotation that no kubelet has confirmed. Later another pod's label
// counts.
func (h *tenancy) claim(t *testing.T) {
	known := object{"selector": "has(known)", "namespaceSelector": "projectcalico.org/name == 'tenant'"}
	apiServer := strings.Fields(h.Kubectl(t, "get", "endpoints", "kubernetes", "-o", "jsonpath={.subsets[0].addresses[0].ip}"))[0]
	names := strings.Join([]string{outsider + "/32", apiServer + "/32", h.web.Status.PodIP + "/32"}, ",")
	p := idle("claim", map[string]string{"cni.projectcalico.org/podIPs": names})
	p.Labels["known"], p.Spec.NodeName = "yes", witness
	p.Spec.Volumes = []corev1.Volume{{Name: "never", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "never"}},
	}}}
	both := ingress(h.friends(), rule("Allow", known))
	both["types"], both["egress"] = []string{"Ingress", "Egress"}, []object{{"action": "Deny", "destination": known}, {"action": "Allow"}}
	h.attack(t, attempt{
		aim:   "others' addresses for a pod that never starts, to allow a host outside what the pod may, and to deny others what it may not",
		who:   "outsider",
		tried: "cni.projectcalico.org/podIPs: " + names, policies: []object{both},
		answer: "the host is denied; the API server and the pod with this address are reached", seen: arrived,
		do: func(t *testing.T) {
			h.create(t, p)
			t.Cleanup(func() { h.gone(t, "claim") })
			h.must(t, request{by: "owner", verb: "PATCH", path: core + "namespaces/tenant/pods/other",
				body: object{"metadata": object{"labels": object{"known": "yes"}}}})
			h.passes(t, "other")
			if err := connect(h.server.NS, "10.96.0.1:443"); err != nil {
				t.Errorf("the API server: %v", err)
			}
			if page, err := get(t.Context(), h.server.NS, at(h.web.Status.PodIP, 80)); err != nil || page != "web" {
				t.Errorf("a pod whose address was claimed: %q, %v", page, err)
			}
		},
	})
}

// stale sets another address in the annotation of the pod on the thief's node, which has the allowed labels, than in
// its status: as after a new sandbox, when the next pod may have the address.
func (h *tenancy) stale(t *testing.T) {
	p := h.pod[thief]
	note := func(v4 string) request {
		return request{by: "plugins", verb: "PATCH", path: core + "namespaces/default/pods/" + h.talker[thief] + "/status",
			body: notes("cni.projectcalico.org/podIP", v4+"/32", "cni.projectcalico.org/podIPs", v4+"/32,"+p.V6.String()+"/128")}
	}
	aim := "the rights of the pod that had the address before"
	t.Run(aim, func(t *testing.T) {
		defer h.clean(t)
		h.must(t, note(p.V4.String()))
		h.protect(t, 0,
			ingress(h.friends(), rule("Allow", object{"selector": "app == 'traffic'", "namespaceSelector": "projectcalico.org/name == 'default'"})))
		h.denied(t, "evil")
		h.passes(t, "traffic")
		h.must(t, note(lastOf(h.block(thief)).String()))
		h.denied(t, "traffic")
		h.must(t, note(p.V4.String()))
		h.passes(t, "traffic")
		h.record.add(row{part: partTenant, aim: aim, tried: "status " + p.V4.String() + ", annotation another address of its block",
			answer: "denied while both differ", seen: arrived})
	})
}

// links makes links of other engines' names in the node's namespace, from a pod with no capability but CAP_NET_ADMIN.
func (h *tenancy) links(t *testing.T) {
	names := []string{"cilium_host", "antrea-gw0", "kube-ipvs0"}
	h.attack(t, attempt{
		aim: "with CAP_NET_ADMIN, links of other engines' names on its node", who: "evil",
		tried:    "RTM_NEWLINK with IFLA_TARGET_NETNSID 0: " + strings.Join(names, ", "),
		policies: []object{ingress(h.friends())},
		answer:   "policies stay in force: denied", seen: victim + ": `node status`",
		do: func(t *testing.T) {
			for _, name := range names {
				if err := linkOutside(h.inside(t, h.tenants["admin"]).NS, name); err != nil {
					t.Errorf("link %s: %v", name, err)
				}
				defer h.hosts[victim].Run(t, "ip", "link", "del", name)
			}
			h.tells(t, "ip link delete cilium_host")
			if r, err := h.status(victim); err != nil || !r.EnforcesPolicies {
				t.Errorf("%s enforces no policies: %+v, %v", victim, r.Policy, err)
			}
		},
	})
}

// linkOutside makes a bridge in the namespace of a pod's node.
func linkOutside(pod *netnstest.NS, name string) error {
	var attrs, info nlmsg.Attributes
	info.Text(unix.IFLA_INFO_KIND, "bridge")
	attrs.Text(unix.IFLA_IFNAME, name)
	attrs.Nest(unix.IFLA_LINKINFO, info)
	return pod.Outside(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, 0, attrs)
}
