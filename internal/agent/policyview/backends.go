package policyview

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/policy"
)

// Kinds of arguments that stand for pods.
const (
	ofService    = "svc"
	ofDeployment = "deploy"
)

// kinds maps the accepted names to the kinds.
var kinds = map[string]string{"svc": ofService, "service": ofService, "services": ofService, "deploy": ofDeployment,
	"deployment": ofDeployment, "deployments": ofDeployment}

// otherKinds have pods, too, but are not accepted.
var otherKinds = []string{"sts", "statefulset", "ds", "daemonset", "job", "rs", "replicaset", "cronjob"}

// slice is the part of an EndpointSlice with the pods and ports behind a Service.
type slice struct {
	api.Meta  `json:"metadata"`
	Endpoints []struct {
		Conditions api.EndpointConditions `json:"conditions"`
		TargetRef  *struct {
			Kind      string `json:"kind"`
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"targetRef"`
	} `json:"endpoints"`
	Ports []servicePort `json:"ports"`
}

// ResourceType implements api.Resource.
func (*slice) ResourceType() api.Type { return (*api.EndpointSlice)(nil).ResourceType() }

// service is the part of a Service with its addresses and ports.
type service struct {
	api.Meta `json:"metadata"`
	Spec     struct {
		ClusterIPs []string      `json:"clusterIPs"`
		Ports      []servicePort `json:"ports"`
	} `json:"spec"`
}

// ResourceType implements api.Resource.
func (*service) ResourceType() api.Type { return (*api.Service)(nil).ResourceType() }

type servicePort struct {
	Name     string `json:"name"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
}

func (p servicePort) is(protocol uint8) bool {
	return protocols[cmp.Or(p.Protocol, "TCP")] == protocol
}

// lookup reads from the API server what the ends of a connection stand for.
type lookup struct {
	store *kubernetes.Store
	known *known
}

func (c *command) lookup(k *known) (*lookup, error) {
	cfg, err := cluster.Connect(c.settings.Kubeconfig, "tortie-node-policy")
	if err != nil {
		return nil, err
	}
	store, err := cluster.OpenStore(cluster.Finding(cfg, c.settings.APIGroup))
	return &lookup{store, k}, err
}

// resolved returns the connections between pods and addresses that the arguments stand for, and notes on them.
func (l *lookup) resolved(ctx context.Context, asked connection) (all []connection, notes []string, err error) {
	if asked.to.addr.IsValid() && l.known.ofPod(asked.to.addr) == nil {
		if name, ok := l.serviceAt(ctx, asked.to.addr); ok {
			notes = append(notes, fmt.Sprintf("%s is the cluster IP of Service %s", asked.to.addr, name))
			asked.to = end{kind: ofService, pod: name}
		}
	}
	from, note, err := l.pods(ctx, asked.from, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("FROM %s: %w", asked.from, err)
	}
	notes = append(notes, note...)
	to, note, err := l.pods(ctx, asked.to, &asked)
	if err != nil {
		return nil, nil, fmt.Errorf("TO %s: %w", asked.to, err)
	}
	notes = append(notes, note...)
	for _, f := range from {
		for _, t := range to {
			c := asked
			c.from, c.to = f, t
			all = append(all, c)
		}
	}
	return all, notes, nil
}

// rank returns 0 for pods of this node, 1 for others.
func (k *known) rank(pod policy.PodKey) int {
	if k.Local[policies.LinkOf(pod)] == pod {
		return 0
	}
	return 1
}

// ofPod returns the pod that has an address.
func (k *known) ofPod(a netip.Addr) *policy.Pod {
	for _, p := range k.Pods {
		if slices.Contains(p.Addresses, a) {
			return p
		}
	}
	return nil
}

// serviceAt returns the Service with a cluster IP. It finds none without the right to read Services, which the agent
// has if it announces them.
func (l *lookup) serviceAt(ctx context.Context, a netip.Addr) (name policy.PodKey, ok bool) {
	var found api.List[service, *service]
	if err := l.store.Select(ctx, "", "", "", &found); err != nil {
		return name, false
	}
	for i := range found.Items {
		if s := &found.Items[i]; slices.Contains(s.Spec.ClusterIPs, a.String()) {
			return policy.PodKey{Namespace: s.Namespace, Name: s.Name}, true
		}
	}
	return name, false
}

// pods returns the ends that e stands for. A Service's port in target, the connection with the destination e, becomes
// the port of its pods.
func (l *lookup) pods(ctx context.Context, e end, target *connection) (all []end, notes []string, err error) {
	switch e.kind {
	case ofService:
		all, err = l.behind(ctx, e, target)
	case ofDeployment:
		pattern := regexp.MustCompile("^" + regexp.QuoteMeta(e.pod.Name) + "-[a-z0-9]+-$")
		for key, p := range l.known.Pods {
			if key.Namespace == e.pod.Namespace && pattern.MatchString(p.Prefix) {
				all = append(all, end{pod: key})
			}
		}
		if len(all) == 0 {
			err = fmt.Errorf("no pod that runs has the name of such a Deployment's: see kubectl -n %s get deployments,pods", e.pod.Namespace)
		}
	default:
		return []end{e}, nil, nil
	}
	slices.SortFunc(all, func(a, b end) int { // this node's pods first: the kernel is compared for them
		return cmp.Or(l.known.rank(a.pod)-l.known.rank(b.pod), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	if err == nil {
		names := make([]string, len(all))
		for i := range all {
			names[i] = all[i].pod.Name
		}
		notes = []string{fmt.Sprintf("%s stands for %s: %s", e, count(len(all), "pod", "pods"), cut(names))}
	}
	return all, notes, err
}

// behind returns the pods behind a Service.
func (l *lookup) behind(ctx context.Context, e end, target *connection) (all []end, err error) {
	var found api.List[slice, *slice]
	if err := l.store.Select(ctx, e.pod.Namespace, api.LabelServiceName+"="+e.pod.Name, "", &found); err != nil {
		return nil, fmt.Errorf("read its EndpointSlices: %w: name one of its pods", err)
	}
	if len(found.Items) == 0 {
		return nil, fmt.Errorf("there is no such Service, or it has no EndpointSlice: see kubectl -n %s get services,endpointslices",
			e.pod.Namespace)
	}
	seen := map[policy.PodKey]bool{}
	var ports []servicePort
	for _, s := range found.Items {
		ports = append(ports, s.Ports...)
		for _, p := range s.Endpoints {
			if p.TargetRef == nil || p.TargetRef.Kind != "Pod" || p.Conditions.Ready != nil && !*p.Conditions.Ready {
				continue
			}
			key := policy.PodKey{Namespace: cmp.Or(p.TargetRef.Namespace, e.pod.Namespace), Name: p.TargetRef.Name}
			if l.known.Pods[key] != nil { // other pods have the host's network
				seen[key] = true
			}
		}
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("it has no ready endpoint that is a pod with a network of its own: see kubectl -n %s get endpointslices -l %s=%s",
			e.pod.Namespace, api.LabelServiceName, e.pod.Name)
	}
	for key := range seen {
		all = append(all, end{pod: key})
	}
	if target == nil || target.port == 0 && target.name == "" {
		return all, nil
	}
	return all, l.mapPort(ctx, e, ports, target)
}

// mapPort replaces a Service's port by the port of its pods. Without the right to read the Service it uses the ports of
// the EndpointSlices.
func (l *lookup) mapPort(ctx context.Context, e end, ports []servicePort, target *connection) error {
	ports = slices.DeleteFunc(ports, func(p servicePort) bool { return !p.is(target.protocol) })
	slices.SortFunc(ports, func(a, b servicePort) int { return cmp.Or(int(a.Port)-int(b.Port), cmp.Compare(a.Name, b.Name)) })
	ports = slices.Compact(ports)
	var declared []string
	asked := cmp.Or(target.name, strconv.Itoa(int(target.port)))
	name, known := asked, target.name != ""
	var found api.List[service, *service]
	if err := l.store.Select(ctx, e.pod.Namespace, "", "metadata.name="+e.pod.Name, &found); err == nil && len(found.Items) == 1 {
		for _, p := range found.Items[0].Spec.Ports {
			declared = append(declared, strings.Trim(fmt.Sprintf("%d/%s %s", p.Port, cmp.Or(p.Protocol, "TCP"), p.Name), " "))
			if p.is(target.protocol) && (p.Name == target.name && target.name != "" || p.Port == target.port && target.name == "") {
				name, known = p.Name, true
			}
		}
	} else {
		known = known || len(ports) == 1
		if len(ports) == 1 {
			name = ports[0].Name
		}
	}
	for _, p := range ports {
		if known && p.Name == name {
			target.port, target.name = p.Port, ""
			return nil
		}
		if len(found.Items) == 0 {
			declared = append(declared, fmt.Sprintf("%d/%s at its pods", p.Port, cmp.Or(p.Protocol, "TCP")))
		}
	}
	return nodestatus.Usagef("port %q: the Service has none such for %s, but %s", asked, protocolName(target.protocol),
		cmp.Or(strings.Join(declared, ", "), "none"))
}

// nodeOf returns the node of a pod, or "".
func (l *lookup) nodeOf(ctx context.Context, pod string) string {
	namespace, name, _ := strings.Cut(pod, "/")
	var found api.List[api.Pod, *api.Pod]
	if err := l.store.Select(ctx, namespace, "", "metadata.name="+name, &found); err != nil || len(found.Items) != 1 {
		return ""
	}
	return found.Items[0].Spec.NodeName
}

// sayNodes names the node of a pod that is not on this node, with the command to run there.
func (l *lookup) sayNodes(ctx context.Context, x *Explained, args []string) {
	for _, j := range []*Judgement{x.Egress, x.Ingress} {
		if j == nil || j.Kernel != elsewhere {
			continue
		}
		if node := l.nodeOf(ctx, j.Pod); node != "" {
			j.Kernel = fmt.Sprintf("the pod is on node %s: ask there: %s", node,
				nodestatus.Elsewhere(node, Command+" explain "+strings.Join(args, " ")))
		}
	}
}

// others adds a note on which of several connections get another verdict.
func (x *Explained) others(all []*Explained) {
	if len(all) < 2 {
		return
	}
	differ := map[string]bool{}
	for _, o := range all[1:] {
		if o.Allowed != x.Allowed {
			differ[fmt.Sprintf("%s -> %s", o.From.text(), o.To.text())] = true
		}
	}
	text := fmt.Sprintf("This is judged for the first pods, and is the same for the others: %s", count(len(all), "connection", "connections"))
	if len(differ) > 0 {
		text = fmt.Sprintf("This is judged for the first pods; it is %s: %s", verdictName(!x.Allowed), cut(slices.Sorted(maps.Keys(differ))))
	}
	x.Notes = append(x.Notes, text)
}

// mostNames bounds the names in a note.
const mostNames = 5

func cut(names []string) string {
	if more := len(names) - mostNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNames], ", "), more)
	}
	return strings.Join(names, ", ")
}
