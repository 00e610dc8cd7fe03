package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/agent/policyview"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// shop makes a namespace with pods on two nodes and a policy: only clients reach the web, at port 80.
func shop(t *testing.T, node string) {
	t.Helper()
	core := clientset.NewForConfigOrDie(labtest.RESTConfig(t))
	if _, err := core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct{ name, app, node, address string }{
		{"web", "web", node, "10.95.0.1"}, {"client", "client", node, "10.95.0.2"}, {"far-client", "client", "elsewhere", "10.95.1.1"},
		{"far-other", "other", "elsewhere", "10.95.1.2"},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: map[string]string{"app": p.app}},
			Spec: corev1.PodSpec{NodeName: p.node, Containers: []corev1.Container{{
				Name: "c", Image: "none", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}},
			}}},
		}
		createAt(t, pod, p.address)
	}
	app := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	http := intstr.FromString("http")
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: *app("web"),
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: app("client")}}, Ports: []networkingv1.NetworkPolicyPort{{Port: &http}},
		}},
	}}
	if _, err := core.NetworkingV1().NetworkPolicies("shop").Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createAt makes a pod with an address in its status, as a kubelet reports it.
func createAt(t *testing.T, pod *corev1.Pod, address string) {
	t.Helper()
	pods := clientset.NewForConfigOrDie(labtest.RESTConfig(t)).CoreV1().Pods("shop")
	made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	errtest.Must(t, err)
	made.Status.PodIP, made.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	_, err = pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	errtest.Must(t, err)
}

// services makes a Service with ports that lead to other ports of two pods, one of a Deployment on another node.
func services(t *testing.T) {
	t.Helper()
	core := clientset.NewForConfigOrDie(labtest.RESTConfig(t))
	createAt(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "far-web-7d9f-x1", GenerateName: "far-web-7d9f-", Labels: map[string]string{"app": "free"}},
		Spec:       corev1.PodSpec{NodeName: "elsewhere", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, "10.95.1.3")
	_, err := core.CoreV1().Services("shop").Create(t.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "front"}, Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.77", Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(80)},
				{Name: "alt", Port: 8080, TargetPort: intstr.FromInt32(81)}},
		}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	endpoint := func(address, pod string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod}}
	}
	port := func(name string, number int32) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Port: &number}
	}
	_, err = core.DiscoveryV1().EndpointSlices("shop").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "front-1", Labels: map[string]string{api.LabelServiceName: "front"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{endpoint("10.95.0.1", "web"), endpoint("10.95.1.3", "far-web-7d9f-x1")},
		Ports:       []discoveryv1.EndpointPort{port("http", 80), port("alt", 81)},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
}

const wider = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: other}}}]}]}
`

// closing is for what comes in, as Calico's clients store it, or for what leaves, as a server of projectcalico.org/v3 does.
const closing = `
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: closing, namespace: shop}
spec: {selector: app == 'client', egress: []}
`

// The commands explain the API server's policies, and report whether the kernel has them: before the agent it has none.
func TestPolicyOnARealNode(t *testing.T) {
	shop(t, "policed")
	m := newMachine(t, "policed", "172.31.8.1")
	netnstest.Cable(t, m.NS, "eth0", netnstest.New(t), "eth0")
	m.Addr(t, "eth0", "172.31.8.1/24")

	if out := m.try("policy"); !strings.Contains(out, "this machine is not judged. Ask the pod of the node that is meant: kubectl") {
		t.Errorf("without an agent: %s", out)
	}
	pid := m.Start(t, "env", append(m.env[:len(m.env)-1:len(m.env)-1], "TORTIE_POLICY=off", m.env[len(m.env)-1])...)
	eventually(t, func() error {
		if out := m.try("status"); !strings.Contains(out, "Node ") {
			return fmt.Errorf("status: %s", out)
		}
		return nil
	})
	if out := m.try("policy", "-node", "other"); !strings.Contains(out, "is that of node policed, not of other: ask the other one: kubectl") {
		t.Errorf("another node's: %s", out)
	}
	for _, want := range []string{"2 pods", "No policy is in force: there is no table inet tortie-policy", "shop/web", "10.95.0.1",
		"NetworkPolicy shop/web", "none: allowed"} {
		if out := m.node(t, "policy"); !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if out := m.node(t, "policy", "explain", "shop/client", "shop/web:http"); !strings.Contains(out, "80/TCP: allowed") ||
		!strings.Contains(out, "differs: there is no table") {
		t.Errorf("before the agent:\n%s", out)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	errtest.Must(t, os.WriteFile(file, []byte(wider), 0o600))
	out := m.node(t, "policy", "diff", "-f", file)
	difftest.Contains(t, out, "NetworkPolicy shop/web: changed", "denied   shop/client (+1)  shop/web:80/TCP  ingress NetworkPolicy shop/web",
		"allowed  shop/far-other   ")
	errtest.Must(t, os.WriteFile(file, []byte(closing), 0o600))
	denies := map[groups.Group]string{groups.V1: "ingress CalicoNetworkPolicy shop/closing",
		groups.V3: "egress CalicoNetworkPolicy shop/closing"}
	out = m.node(t, "policy", "diff", "-f", file)
	for in, by := range denies {
		if strings.Contains(out, by) != (in == labtest.Group(t)) {
			t.Errorf("%q is there, or missing, in\n%s", by, out)
		}
	}

	errtest.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, func() error {
		if out := m.try("status"); !strings.Contains(out, "no agent answers") {
			return fmt.Errorf("status: %s", out)
		}
		return nil
	})
	m.Start(t, "env", append(append(m.env[:len(m.env)-1:len(m.env)-1], "TORTIE_POLICY=on", "TORTIE_FLOWS=true"), m.env[len(m.env)-1])...)
	eventually(t, func() error {
		if out := m.try("policy"); strings.Count(out, "in force") != 4 {
			return fmt.Errorf("not in force:\n%s", out)
		}
		return nil
	})
	for to, want := range map[string]string{"shop/client": "allowed", "shop/far-client": "allowed",
		"shop/far-other": "denied", "192.0.2.1": "denied"} {
		var x policyview.Explained
		errtest.Must(t, json.Unmarshal([]byte(m.node(t, "policy", "explain", "-o", "json", to, "shop/web:80/TCP")), &x))
		if x.Allowed != (want == "allowed") || x.Ingress == nil || x.Ingress.Policy != "NetworkPolicy shop/web" || x.Ingress.Kernel != "agrees" {
			t.Errorf("%s: want %s: %+v %+v", to, want, x, x.Ingress)
		}
	}
	services(t)
	for args, want := range map[string][]string{
		"shop/client svc/front:80": {"shop/web (10.95.0.1) 80/TCP: allowed", "shop/svc/front stands for 2 pods: web, far-web-7d9f-x1",
			"is the same for the others: 2 connections"},
		"shop/client shop/svc/front:http": {"80/TCP: allowed"},
		"shop/far-other svc/front:80":     {"80/TCP: denied", "it is allowed: shop/far-other (10.95.1.2) -> shop/far-web-7d9f-x1 (10.95.1.3)"},
		"shop/client 10.96.0.77:80":       {"10.96.0.77 is the cluster IP of Service shop/front", "stands for 2 pods"},
		"shop/client deploy/far-web:80": {"shop/deploy/far-web stands for 1 pod: far-web-7d9f-x1",
			"the pod is on node elsewhere: ask there: kubectl -n kube-system exec", "policy explain shop/client deploy/far-web:80"},
		"shop/client shop/deploy/none:80": {"TO shop/deploy/none: no pod that runs has the name"},
		"shop/client svc/front:81":        {`port "81": the Service has none such for TCP, but 80/TCP http, 8080/TCP alt`},
		"shop/client svc/none:80":         {"TO shop/svc/none: there is no such Service"},
		"shop/far-client 192.0.2.1:80":    {"NAMESPACE/svc/NAME (kubectl get services -A | grep -w 192.0.2.1)"},
	} {
		difftest.Contains(t, m.try(append([]string{"policy", "explain"}, strings.Fields(args)...)...), want...)
	}
	// Without the right to read staged policies there are records, and policies are in force.
	if out := m.node(t, "flows", "-o", "json", "shop"); out != "" {
		t.Errorf("flows without a connection: %s", out)
	}
	t.Logf("node policy\n%s", m.node(t, "policy", "shop/web"))
	clusterPolicies(t, m)
}
