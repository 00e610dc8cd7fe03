package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	objectnames "github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// crd and core are the API paths of Calico's resources and of the core group.
const (
	crd  = "/apis/crd.projectcalico.org/v1/"
	core = "/api/v1/"
)

func client(t *testing.T, admin *rest.Config, token string) rest.Interface {
	t.Helper()
	if token == "" {
		t.Fatal("empty token")
	}
	cfg := rest.AnonymousClientConfig(admin)
	cfg.BearerToken, cfg.QPS, cfg.WarningHandler = token, -1, rest.NoWarnings{}
	c, err := kubernetes.NewForConfig(cfg)
	errtest.Must(t, err)
	return c.Discovery().RESTClient()
}

// request is one request to the API server.
type request struct {
	aim  string // purpose of the attack
	by   string // owner of its token
	verb string
	path string
	// body is an object, or the merge patch of a PATCH. what describes a large one.
	body    any
	what    string
	message string // part of the error message
	// refused identifies the refusal: the name of a policy, or a text of RBAC, the node authorizer and NodeRestriction.
	refused string
}

// Refusals by others than the policies.
const (
	byRBAC = "cannot " // RBAC
	byNode = "only "   // NodeRestriction
)

type object = map[string]any

// send sends a request, which is written for crd.projectcalico.org/v1.
func (s *siege) send(t *testing.T, r request) error {
	t.Helper()
	if obj, ok := r.body.(object); ok {
		labtest.InGroup(t, &unstructured.Unstructured{Object: obj})
	}
	body, err := json.Marshal(r.body)
	errtest.Must(t, err)
	req := s.by[r.by].Verb(r.verb).AbsPath(labtest.InGroupText(t, r.path))
	switch r.verb {
	case http.MethodPatch:
		req = req.SetHeader("Content-Type", string(types.MergePatchType)).Body(body)
	case http.MethodPost, http.MethodPut:
		req = req.SetHeader("Content-Type", "application/json").Body(body)
	}
	return req.Do(t.Context()).Error()
}

// String formats the request for a reader.
func (r request) String() string {
	text := r.what
	if text == "" && r.body != nil {
		b, _ := json.Marshal(r.body) // decoded from JSON
		text = string(b)
	}
	path := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(r.path, crd), core), "/apis/")
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", r.by, r.verb, path, text))
}

const partAPI = "By the API, with the tokens of node1"

// requests runs the attacks on the API server; all but the last are refused.
func (s *siege) requests(t *testing.T) {
	was, policies := s.refusals(t), 0
	for _, r := range slices.Concat(s.onClaims(), s.onBlocks(t), s.onHandles(t), s.onTheCluster(t), s.onNodesAndPods(), s.onTokens()) {
		t.Run(r.aim, func(t *testing.T) {
			err := s.send(t, r)
			refusal := apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
			byPolicy := refusal && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '")
			if !refusal || !strings.Contains(err.Error(), r.refused) || !strings.Contains(err.Error(), r.message) ||
				byPolicy != strings.HasPrefix(r.refused, "tortie-") {
				t.Fatalf("%s: %v, want it refused by %q: %q", r, err, r.refused, r.message)
			}
			seen := "the API server's answer"
			if byPolicy {
				policies++
				seen += ", and its metric"
			}
			s.inVain(t)
			s.record.add(row{part: partAPI, aim: r.aim, tried: r.String(), answer: denial(err), seen: seen})
		})
	}
	if now := s.refusals(t); now-was < policies || policies == 0 {
		t.Errorf("the API server has counted %d refusals by policies, want %d at least", now-was, policies)
	}
	t.Run("claim many blocks", s.claimMany)
	t.Run("another pod's address for its own pod", s.pose)
}

// refusals returns the number of refusals by the policies in the API server's metrics.
func (s *siege) refusals(t *testing.T) (total int) {
	t.Helper()
	text, err := s.by["admin"].Get().AbsPath("/metrics").Do(t.Context()).Raw()
	errtest.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_validating_admission_policy_check_total{") && strings.Contains(line, `enforcement_action="deny"`) &&
			strings.Contains(line, "tortie-fence-") {
			n := 0
			fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &n)
			total += n
		}
	}
	return total
}

// claimMany claims free blocks. A policy sees one object and not their number, so the claims succeed. Pods of others
// still get addresses, and `ipam check` finds the claims.
func (s *siege) claimMany(t *testing.T) {
	const count = 40
	var claims []string
	for i := range count {
		cidr := fmt.Sprintf("192.168.%d.0/26", 10+i)
		s.own[cidr] = true
		claims = append(claims, crd+"blockaffinities/"+objectnames.Affinity(thief, netip.MustParsePrefix(cidr)))
		s.must(t, request{by: "plugins", verb: "POST", path: crd + "blockaffinities", body: affinity(thief, cidr)})
	}
	s.StartPod(t, "late", victim)
	found := map[audit.Kind]int{}
	for _, f := range s.findings(t) {
		found[f.Kind]++
	}
	if found[audit.ClaimNoBlock] != count {
		t.Errorf("ipam check finds %v, want %d claims without blocks", found, count)
	}
	s.inVain(t)
	s.record.add(row{part: partAPI, aim: "claim many blocks", tried: fmt.Sprintf("plugins: POST blockaffinities, %d times", count),
		answer: "granted: the blocks are free; a new pod on node2 still gets an address", seen: "`kube-controllers ipam check`: claim-no-block"})
	for _, path := range claims {
		s.must(t, request{by: "plugins", verb: "DELETE", path: path})
	}
	s.Kubectl(t, "delete", "pod", "late", "--now")
}

// pose sets the address of another pod in the annotation that Calico's agents read, on a pod of the thief's node.
func (s *siege) pose(t *testing.T) {
	path := core + "namespaces/default/pods/" + s.talker[thief] + "/status"
	r := request{by: "plugins", verb: "PATCH", path: path,
		body: notes("cni.projectcalico.org/podIP", s.web.Status.PodIP+"/32", "cni.projectcalico.org/podIPs", s.web.Status.PodIP+"/32")}
	s.must(t, r)
	s.inVain(t)
	s.record.add(row{part: partAPI, aim: "another pod's address for its own pod", tried: r.String(),
		answer: "stored and not used: the blocks record the owner of an address", seen: "the annotation of the thief's own pod"})
}

// denial returns the essential part of a refusal.
func denial(err error) string {
	text := err.Error()
	policy := ""
	if _, rest, ok := strings.Cut(text, "ValidatingAdmissionPolicy '"); ok {
		policy, _, _ = strings.Cut(rest, "'")
	}
	for _, before := range []string{"denied request: ", "is forbidden: "} {
		if _, rest, ok := strings.Cut(text, before); ok {
			text = rest
		}
	}
	if policy != "" {
		return "403, " + policy + ": " + text
	}
	return "403: " + text
}

func affinity(node, cidr string) object {
	return object{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity",
		"metadata": object{"name": node + "-" + objectnames.Block(netip.MustParsePrefix(cidr))},
		"spec":     object{"node": node, "cidr": cidr, "state": "confirmed", "type": "host", "deleted": "false"},
	}
}

func (s *siege) onClaims() []request {
	claim := func(aim, node, cidr, refused string) request {
		return request{aim: aim, by: "plugins", verb: "POST", path: crd + "blockaffinities", body: affinity(node, cidr),
			what: "of " + node + ", " + cidr, refused: refused}
	}
	pod := s.pod[victim].V4
	odd := affinity(thief, "192.168.77.0/26")
	odd["metadata"].(object)["name"] = victim + "-192-168-77-0-26"
	return []request{
		claim("a claim in another node's name", victim, "192.168.77.0/26", "tortie-fence-affinities"),
		{aim: "its own claim under the name of another node's", by: "plugins", verb: "POST", path: crd + "blockaffinities", body: odd,
			what: "named " + victim + "-192-168-77-0-26", refused: "tortie-fence-affinities"},
		claim("the address of another node's pod alone", thief, pod.String()+"/32", "tortie-fence-ranges"),
		claim("a part of a block", thief, "192.168.77.32/27", "tortie-fence-ranges"),
		claim("all addresses", thief, "0.0.0.0/0", "tortie-fence-"),
		claim("all blocks of the pool", thief, "192.168.0.0/16", "tortie-fence-"),
		{aim: "delete another node's claim", by: "plugins", verb: "DELETE",
			path: crd + "blockaffinities/" + objectnames.Affinity(victim, s.block(victim)), refused: "tortie-fence-affinities"},
	}
}

// changed returns an IPAMBlock with a changed spec and metadata.
func (s *siege) changed(t *testing.T, b netip.Prefix, change func(obj, spec object)) object {
	t.Helper()
	obj := s.ofBlock(t, b)
	spec := obj["spec"].(object)
	spec["sequenceNumber"] = spec["sequenceNumber"].(int64) + 1
	change(obj, spec)
	return obj
}

func (s *siege) onBlocks(t *testing.T) []request {
	b := s.block(victim)
	place := int(s.pod[victim].V4.As4()[3]) - int(b.Addr().As4()[3])
	put := func(aim, what, message string, block netip.Prefix, change func(obj, spec object)) request {
		return request{
			aim: aim, by: "plugins", verb: "PUT", path: crd + "ipamblocks/" + objectnames.Block(block), what: what,
			refused: "tortie-fence-blocks", message: message,
			body: s.changed(t, block, change),
		}
	}
	return []request{
		put("free the address of another node's pod", "its allocation null", "changes addresses of other nodes", b, func(_, spec object) {
			spec["allocations"].([]any)[place] = nil
			spec["unallocated"] = append(spec["unallocated"].([]any), place)
		}),
		put("take the address of another node's pod", "its attributes with node: "+thief, "changes addresses of other nodes",
			b, func(_, spec object) {
				spec["attributes"].([]any)[int(spec["allocations"].([]any)[place].(int64))].(object)["secondary"].(object)["node"] = thief
			}),
		put("take another node's block", "affinity: host:"+thief, "takes no block from", b,
			func(_, spec object) { spec["affinity"] = "host:" + thief }),
		put("exhaust a block's sequence number", "sequenceNumber: 2^62", "counts one write", b,
			func(_, spec object) { spec["sequenceNumber"] = int64(1) << 62 }),
		put("let the garbage collector delete a block", "an ownerReference to what does not exist", "adds no owners", b, func(obj, _ object) {
			obj["metadata"].(object)["ownerReferences"] = []any{object{"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "0"}}
		}),
		put("hold addresses of its own block for another node", "a free address with node: "+victim, "changes addresses of other nodes",
			s.block(thief), func(_, spec object) {
				free := spec["unallocated"].([]any)
				spec["attributes"] = append(spec["attributes"].([]any), object{"handle_id": "x", "secondary": object{"node": victim}})
				spec["allocations"].([]any)[int(free[0].(int64))], spec["unallocated"] = len(spec["attributes"].([]any))-1, free[1:]
			}),
		{aim: "delete another node's block", by: "plugins", verb: "DELETE", path: crd + "ipamblocks/" + objectnames.Block(b),
			refused: "tortie-fence-blocks"},
	}
}

func (s *siege) onHandles(t *testing.T) []request {
	spec := s.ofBlock(t, s.block(victim))["spec"].(object)
	place := int(s.pod[victim].V4.As4()[3]) - int(s.block(victim).Addr().As4()[3])
	holder := spec["attributes"].([]any)[int(spec["allocations"].([]any)[place].(int64))].(object)["handle_id"].(string)
	handle := func(id string) object {
		return object{"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle", "metadata": object{"name": strings.ToLower(id)},
			"spec": object{"handleID": id, "block": object{}}}
	}
	return []request{
		{aim: "delete the handle of another node's pod", by: "plugins", verb: "DELETE", path: crd + "ipamhandles/" + objectnames.Handle(holder),
			refused: "tortie-fence-handles"},
		{aim: "the handle of the tunnel of a node that is still to join, in capitals", by: "plugins", verb: "POST", path: crd + "ipamhandles",
			body: handle("VXLAN-tunnel-addr-node9"), what: "VXLAN-tunnel-addr-node9", refused: "tortie-fence-handles"},
	}
}

func custom(kind, name string, spec object) object {
	return object{"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": object{"name": name}, "spec": spec}
}

func (s *siege) onTheCluster(t *testing.T) []request {
	locked := s.get(t, crd+"clusterinformations/default")
	locked["spec"].(object)["datastoreReady"] = false
	return []request{
		{aim: "a pool over the nodes' network", by: "agent", verb: "POST", path: crd + "ippools",
			body: custom("IPPool", "evil", object{"cidr": "172.30.0.0/24", "blockSize": 32}), refused: byRBAC},
		{aim: "disable the pool", by: "agent", verb: "PATCH", path: crd + "ippools/default-ipv4-ippool",
			body: object{"spec": object{"disabled": true}}, refused: byRBAC},
		{aim: "a BGP peer of all nodes", by: "agent", verb: "POST", path: crd + "bgppeers",
			body: custom("BGPPeer", "evil", object{"peerIP": s.is[thief].address, "asNumber": 65009}), refused: byRBAC},
		{aim: "no mesh any more", by: "agent", verb: "POST", path: crd + "bgpconfigurations",
			body: custom("BGPConfiguration", "default", object{"nodeToNodeMeshEnabled": false}), refused: byRBAC},
		{aim: "settings of another node", by: "agent", verb: "POST", path: crd + "felixconfigurations",
			body: custom("FelixConfiguration", "node."+victim, object{"vxlanPort": 9999}), refused: "tortie-fence-cluster"},
		{aim: "lock the datastore", by: "agent", verb: "PUT", path: crd + "clusterinformations/default", body: locked,
			what: "datastoreReady: false", refused: "tortie-fence-cluster"},
		{aim: "lead the controllers",
			by: "agent", verb: "PATCH", path: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/tortie-kube-controllers",
			body: object{"spec": object{"holderIdentity": "evil"}}, refused: byRBAC},
		{aim: "the heartbeat of another node",
			by: "kubelet", verb: "PATCH", path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + victim,
			body: object{"spec": object{"holderIdentity": "evil"}}, refused: byNode},
		{aim: "an Event in another node's name", by: "agent", verb: "POST", path: core + "namespaces/default/events",
			what: "source.host: " + victim, body: object{
				"apiVersion": "v1", "kind": "Event", "metadata": object{"generateName": "evil", "namespace": "default"}, "type": "Warning",
				"reason": "InvalidNode", "message": "evil",
				"involvedObject": object{"kind": "Node", "name": victim}, "source": object{"component": "tortie-node", "host": victim},
				"reportingComponent": "tortie-node", "reportingInstance": victim,
			}, refused: "tortie-fence-events"},
	}
}

func notes(pairs ...string) object {
	all := object{}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return object{"metadata": object{"annotations": all}}
}

func (s *siege) onNodesAndPods() []request {
	address, target := s.is[victim].address, core+"namespaces/default/pods/web"
	pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "evil", "namespace": "kube-system"}, "spec": object{
		"serviceAccountName": "tortie-kube-controllers", "nodeName": thief,
		"containers": []any{object{"name": "c", "image": "none", "securityContext": object{"privileged": true}}},
	}}
	node := object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": "evil"}}
	return []request{
		{aim: "another node's address", by: "agent", verb: "PATCH", path: core + "nodes/" + victim + "/status",
			body: notes("projectcalico.org/IPv4Address", s.is[thief].address+"/24"), refused: "tortie-fence-nodes"},
		{aim: "another node's address, with the kubelet's credential", by: "kubelet", verb: "PATCH", path: core + "nodes/" + victim + "/status",
			body: notes("projectcalico.org/IPv4Address", s.is[thief].address+"/24"), refused: "is not allowed"},
		{aim: "labels that make it a route reflector", by: "agent", verb: "PATCH", path: core + "nodes/" + thief + "/status",
			body: notes("projectcalico.org/labels", `{"route-reflector":"true"}`), refused: "tortie-fence-nodes"},
		{aim: "an annotation in other letters", by: "agent", verb: "PATCH", path: core + "nodes/" + thief + "/status",
			body: notes("projectcalico.org/ipv4address", address+"/24"), refused: "tortie-fence-nodes"},
		{aim: "a key twice, of which the last counts", by: "agent", verb: "PATCH",
			path: core + "nodes/" + thief + "/status", body: json.RawMessage(
				`{"metadata":{"annotations":{"projectcalico.org/VXLANTunnelMACAddr":null,"projectcalico.org/VXLANTunnelMACAddr":"` + s.is[victim].mac +
					`"}}}`), refused: "tortie-fence-nodes"},
		{aim: "another Node", by: "kubelet", verb: "POST", path: core + "nodes", body: node, refused: "is not allowed"},
		{aim: "delete another node", by: "agent", verb: "DELETE", path: core + "nodes/" + victim, refused: byRBAC},
		{aim: "the address of another node's pod, by its annotation", by: "plugins", verb: "PATCH", path: target + "/status",
			body: notes("cni.projectcalico.org/podIP", ""), refused: "tortie-fence-pods"},
		{aim: "delete another node's pod", by: "kubelet", verb: "DELETE", path: target, refused: byNode},
		{aim: "a privileged pod with the controllers' account", by: "agent", verb: "POST", path: core + "namespaces/kube-system/pods", body: pod,
			what: "privileged, tortie-kube-controllers", refused: byRBAC},
		{aim: "such a pod, with the kubelet's credential", by: "kubelet", verb: "POST", path: core + "namespaces/kube-system/pods", body: pod,
			what: "privileged, tortie-kube-controllers", refused: "can only create"},
	}
}

func (s *siege) onTokens() []request {
	bound := func(node string, more object) object {
		spec := object{"boundObjectRef": object{"kind": "Node", "apiVersion": "v1", "name": node}}
		for k, v := range more {
			spec[k] = v
		}
		return object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
	}
	of := func(account string) string {
		return core + "namespaces/kube-system/serviceaccounts/" + account + "/token"
	}
	return []request{
		{aim: "the plugins' token of another node", by: "agent", verb: "POST", path: of("tortie-cni"), body: bound(victim, nil),
			what: "bound to Node " + victim, refused: "tortie-fence-tokens"},
		{aim: "a token of no node", by: "agent", verb: "POST", path: of("tortie-cni"), body: object{"apiVersion": "authentication.k8s.io/v1",
			"kind": "TokenRequest", "spec": object{}}, what: "bound to nothing", refused: "tortie-fence-tokens"},
		{aim: "a token for ten years", by: "agent", verb: "POST", path: of("tortie-cni"),
			body: bound(thief, object{"expirationSeconds": 315360000}), what: "expirationSeconds: 315360000", refused: "tortie-fence-tokens"},
		{aim: "the controllers' token", by: "agent", verb: "POST", path: of("tortie-kube-controllers"), body: bound(thief, nil),
			what: "bound to Node " + thief, refused: byRBAC},
		{aim: "the controllers' token, with the kubelet's credential", by: "kubelet", verb: "POST", path: of("tortie-kube-controllers"),
			body: bound(thief, nil), what: "bound to Node " + thief, refused: "forbidden"},
	}
}
