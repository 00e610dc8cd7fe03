package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

const (
	npPath   = "/apis/networking.k8s.io/v1/namespaces/%s/networkpolicies"
	cnpPath  = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	podPath  = "/api/v1/namespaces/%s/pods"
	nsPath   = "/api/v1/namespaces"
	nodePath = "/api/v1/nodes"
)

// reader takes what a PolicyFeed has.
type reader struct {
	feed    *PolicyFeed
	view    PolicyView
	changed map[string]bool // pods that ever changed
	takes   int
}

// feedAt starts a PolicyFeed of the node self.
func feedAt(t *testing.T, cfg *rest.Config) *reader {
	t.Helper()
	f, err := NewPolicyFeed(Server{Config: cfg, Group: labtest.Current(t)}, "self", slog.New(slog.NewTextHandler(t.Output(), nil)))
	errtest.Must(t, err)
	return startFeed(t, f)
}

func startFeed(t *testing.T, f *PolicyFeed) *reader {
	t.Helper()
	f.SetGround(ground{"10.0.0.0/16": "elsewhere", "10.1.0.0/16": "self"})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return &reader{feed: f, changed: map[string]bool{}}
}

func (r *reader) take() {
	r.view = r.feed.Take()
	r.takes++
	for _, k := range r.view.Changed {
		r.changed[k.String()] = true
	}
}

// await takes after wake-ups until the view is as wanted.
func (r *reader) await(t *testing.T, what string, wanted func(*PolicyView) bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for r.take(); !wanted(&r.view); r.take() {
		select {
		case <-r.feed.Changed():
		case <-limit:
			t.Fatalf("%s: the view never became as wanted: %s", what, r)
		}
	}
}

// want begins with an interest and waits until the view is complete.
func (r *reader) want(t *testing.T, i policy.Interest) {
	t.Helper()
	r.await(t, "listed", func(v *PolicyView) bool { return v.Listed })
	r.feed.Want(i)
	r.await(t, "complete", func(v *PolicyView) bool { return v.Complete && v.Knows(i) })
}

// String is the view without namespaces.
func (r *reader) String() string {
	v := &r.view
	var pods []string
	for _, key := range slices.SortedFunc(maps.Keys(v.Pods), comparePodKeys) {
		pods = append(pods, fmt.Sprintf("%s %v", key, v.Pods[key].Addresses))
	}
	return fmt.Sprintf("listed %v, complete %v, known %v, %d policies, %d of the cluster, pods %v, local %v, nodes %v, problems %v, err %v",
		v.Listed, v.Complete, v.Known, len(v.NetworkPolicies), len(v.ClusterNetworkPolicies), pods, v.Local, v.Nodes, v.Problems, v.Err)
}

func (r *reader) pod(name string) *policy.Pod {
	namespace, name, _ := strings.Cut(name, "/")
	return r.view.Pods[policy.PodKey{Namespace: namespace, Name: name}]
}

// has waits until a pod has the addresses; "gone": until it is not there.
func (r *reader) has(t *testing.T, name, want string) {
	t.Helper()
	r.await(t, name+" "+want, func(*PolicyView) bool {
		if p := r.pod(name); p != nil {
			return fmt.Sprint(p.Addresses) == want
		}
		return want == "gone"
	})
}

// aNamespace creates a namespace.
func aNamespace(t *testing.T, cfg *rest.Config, name string) {
	t.Helper()
	body := fmt.Sprintf(
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"team":"blue"},"annotations":{"left":"out"}}}`, name)
	put(t, cfg, nsPath, name, body)
}

// aPod creates NAMESPACE/NAME on a node with an address, if it is not empty, as the plugin notes it.
func aPod(t *testing.T, cfg *rest.Config, name, node, address, spec string) {
	t.Helper()
	namespace, name, _ := strings.Cut(name, "/")
	path := fmt.Sprintf(podPath, namespace)
	errtest.Must(t,
		raw(t, cfg, http.MethodPost, path, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":"web"}},
		"spec":{"nodeName":%q,"containers":[{"name":"c","image":"i","ports":[{"name":"http","containerPort":80}]}]%s}}`, name, node, spec)))
	t.Cleanup(func() { _ = deletePod(t, cfg, namespace+"/"+name) })
	if address != "" {
		note(t, cfg, namespace+"/"+name, address)
	}
}

func note(t *testing.T, cfg *rest.Config, name, address string) {
	t.Helper()
	patchPod(t, cfg, name,
		fmt.Sprintf(`{"metadata":{"annotations":{"cni.projectcalico.org/podIP":%q,"cni.projectcalico.org/podIPs":%q}}}`, address, address))
}

func patchPod(t *testing.T, cfg *rest.Config, name, body string) {
	t.Helper()
	namespace, name, _ := strings.Cut(name, "/")
	errtest.Must(t, raw(t, cfg, http.MethodPatch, fmt.Sprintf(podPath, namespace)+"/"+name+"/status", body))
}

func deletePod(t *testing.T, cfg *rest.Config, name string) error {
	namespace, name, _ := strings.Cut(name, "/")
	return raw(t, cfg, http.MethodDelete, fmt.Sprintf(podPath, namespace)+"/"+name+"?gracePeriodSeconds=0", "")
}

func networkPolicy(t *testing.T, cfg *rest.Config, namespace, name string) {
	t.Helper()
	put(t, cfg, fmt.Sprintf(npPath, namespace), name, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy",
		"metadata":{"name":%q,"labels":{"left":"out"}},"spec":{"podSelector":{},"ingress":[{"from":[{"podSelector":{}}]}]}}`, name))
}

// asked notes what is asked of the API server.
type asked struct {
	mu       sync.Mutex
	requests []string
}

// recorded reaches the API server through a recorder of the requests of reflectors.
func recorded(t *testing.T) (*rest.Config, *faulty, *asked) {
	t.Helper()
	f, wired := newFaulty(t, labtest.RESTConfig(t))
	a := &asked{}
	f.answers(func(rw http.ResponseWriter, r *http.Request) {
		a.note(r)
		f.through.ServeHTTP(rw, r)
	})
	return wired, f, a
}

func (a *asked) note(r *http.Request) {
	q, verb, kind := r.URL.Query(), "list", ""
	if q.Get("watch") != "" {
		verb = "watch"
	}
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		kind = " metadata"
	}
	if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		kind = " in protobuf"
	}
	name, _ := labtest.Resource(r)
	words := fmt.Sprintf("%s %s%s", verb, name, kind)
	if _, rest, ok := strings.Cut(r.URL.Path, "/namespaces/"); ok {
		namespace, _, _ := strings.Cut(rest, "/")
		words += " of " + namespace
	}
	if s := q.Get("fieldSelector"); s != "" {
		words += " if " + s
	}
	if s := q.Get("labelSelector"); s != "" {
		words += " with " + s
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, words)
}

// take returns the requests since the last call, in order.
func (a *asked) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := slices.Sorted(slices.Values(a.requests))
	a.requests = nil
	return out
}

func (a *asked) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := a.take(); !slices.Equal(got, want) {
		t.Errorf("%s: asked\n\t%s\nwant\n\t%s", what, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// What an agent asks for: no more than its node's policies need, and each of it once.
func TestPolicyFeedAsksForLittle(t *testing.T) {
	cfg, _, asked := recorded(t)
	for _, name := range []string{"little-a", "little-b"} {
		aNamespace(t, cfg, name)
	}
	aPod(t, cfg, "little-a/own", "self", "10.0.1.1/32", "")
	aPod(t, cfg, "little-a/other", "elsewhere", "10.0.1.2/32", "")
	aPod(t, cfg, "little-b/other", "elsewhere", "10.1.1.3/32", "")
	asked.take()
	r := feedAt(t, cfg)
	r.want(t, policy.Interest{})
	asked.expect(t, "at the start",
		"list "+cnpGroup, "watch clusternetworkpolicies", "watch clusternetworkpolicies", // in two versions: no definition
		"watch globalnetworkpolicies", "watch globalnetworksets", "watch hostendpoints",
		"watch namespaces metadata", "watch networkpolicies", "watch networkpolicies", "watch networksets",
		"watch pods in protobuf if spec.nodeName=self", "watch tiers")
	if len(r.view.Pods) != 1 || len(r.view.Local) != 1 || r.view.Namespaces["little-a"]["team"] != "blue" {
		t.Errorf("%s, namespaces %v", r, r.view.Namespaces)
	}
	r.want(t, policy.Interest{Namespaces: []string{"little-b", "little-a", "little-b"}})
	const selector = " if status.phase!=Succeeded,status.phase!=Failed"
	asked.expect(t, "two namespaces", "watch pods in protobuf of little-a"+selector, "watch pods in protobuf of little-b"+selector)
	if len(r.view.Pods) != 3 || len(r.view.Local) != 1 || len(r.pod("little-b/other").Ports) != 1 || len(r.pod("little-a/own").Ports) != 1 ||
		!r.changed["little-b/other"] || !r.changed["little-a/own"] {
		t.Errorf("%s, changed %v", r, r.changed)
	}
	r.want(t, policy.Interest{Namespaces: []string{"little-b"}})
	r.want(t, policy.Interest{Namespaces: []string{"little-a", "little-b"}})
	asked.expect(t, "what is wanted again after a moment")
	many := policy.Interest{}
	for i := range mostNamespaces + 1 {
		many.Namespaces = append(many.Namespaces, fmt.Sprintf("little-%d", i))
	}
	r.want(t, many)
	asked.expect(t, "many namespaces", "watch pods in protobuf"+selector)
	r.want(t, policy.Interest{All: true})
	asked.expect(t, "all")
	waittest.Until(t, time.Second, "pods were forgotten between two watches", func() bool { return len(r.view.Pods) == 3 })
}

// API servers that do not stream lists are asked for pages.
func TestPolicyFeedWithoutStreamedLists(t *testing.T) {
	cfg, f, asked := recorded(t)
	f.answers(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("sendInitialEvents") != "" {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
			return
		}
		asked.note(r)
		f.through.ServeHTTP(rw, r)
	})
	aNamespace(t, cfg, "listed")
	aPod(t, cfg, "listed/own", "self", "10.0.7.1/32", "")
	aPod(t, cfg, "listed/other", "elsewhere", "10.0.7.2/32", "")
	r := feedAt(t, cfg)
	r.want(t, policy.Interest{Namespaces: []string{"listed"}})
	if len(r.view.Pods) != 2 || len(r.view.Local) != 1 || len(r.pod("listed/other").Addresses) != 1 {
		t.Errorf("%s", r)
	}
	if got := asked.take(); !slices.Contains(got, "list pods in protobuf if spec.nodeName=self") {
		t.Errorf("asked %v", got)
	}
	note(t, cfg, "listed/other", "10.0.7.3/32")
	r.has(t, "listed/other", "[10.0.7.3]")
}

// Who may write pods takes no address away from another pod by annotations, nor out of rules that deny the address of
// their own.
func TestPolicyFeedBelievesKubelets(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	aNamespace(t, cfg, "firm")
	r := feedAt(t, cfg)
	r.want(t, policy.Interest{Namespaces: []string{"firm"}})
	aPod(t, cfg, "firm/victim", "elsewhere", "10.0.3.1/32", "")
	r.has(t, "firm/victim", "[10.0.3.1]")
	patchPod(t, cfg, "firm/victim", `{"status":{"phase":"Running","podIP":"10.0.3.1","podIPs":[{"ip":"10.0.3.1"}]}}`)
	aPod(t, cfg, "firm/thief", "self", "10.0.3.1/32", "")
	r.has(t, "firm/thief", "[]")
	note(t, cfg, "firm/victim", "")
	patchPod(t, cfg, "firm/victim", `{"metadata":{"labels":{"seen":"yes"}}}`)
	waittest.Until(t, 10*time.Second, "the label is seen", func() bool {
		r.take()
		p := r.pod("firm/victim")
		return p != nil && p.Labels["seen"] == "yes"
	})
	if got := fmt.Sprint(r.pod("firm/victim").Unsure, r.pod("firm/thief").Addresses,
		r.pod("firm/thief").Unsure); got != "[10.0.3.1] [] [10.0.3.1]" {
		t.Errorf("addresses %s", got)
	}
}

// Unwanted pods are forgotten after a while, and known ones stay until then.
func TestPolicyFeedForgets(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	aNamespace(t, cfg, "forget-a")
	aPod(t, cfg, "forget-a/other", "elsewhere", "10.0.1.2/32", "")
	aPod(t, cfg, "forget-a/own", "self", "10.1.1.3/32", "")
	r := feedAt(t, cfg)
	r.want(t, policy.Interest{Namespaces: []string{"forget-a"}})
	r.has(t, "forget-a/other", "[10.0.1.2]")
	r.feed.Want(policy.Interest{})
	later := func(after time.Duration) {
		r.feed.mu.Lock()
		defer r.feed.mu.Unlock()
		r.feed.keepPods(t.Context(), time.Now().Add(after))
	}
	later(0)
	later(linger / 2)
	r.has(t, "forget-a/other", "[10.0.1.2]")
	later(linger + time.Second)
	r.has(t, "forget-a/other", "gone")
	r.has(t, "forget-a/own", "[10.1.1.3]")
	if !r.view.Complete || r.view.Knows(policy.Interest{Namespaces: []string{"forget-a"}}) || !r.view.Knows(policy.Interest{}) {
		t.Error(r)
	}
}

// The life of pods, on this node and elsewhere.
func TestPolicyFeedFollowsPods(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	aNamespace(t, cfg, "life")
	r := feedAt(t, cfg)
	r.want(t, policy.Interest{Namespaces: []string{"life"}})
	for node, pod := range map[string]string{"self": "life/own", "elsewhere": "life/other"} {
		r.feed.SetGround(ground{"10.0.0.0/16": node})
		aPod(t, cfg, pod, node, "", "")
		if node == "self" {
			r.has(t, pod, "[]") // before the plugin is called
		}
		note(t, cfg, pod, "10.0.2.1/32")
		r.has(t, pod, "[10.0.2.1]")
		before := r.pod(pod)
		patchPod(t, cfg, pod, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
		patchPod(t, cfg, pod, `{"metadata":{"annotations":{"cni.projectcalico.org/podIPs":"10.0.2.2/32"}}}`)
		r.has(t, pod, "[10.0.2.2]")
		if before.Addresses[0].String() != "10.0.2.1" || before.UID != r.pod(pod).UID {
			t.Error("a pod that was handed out has changed")
		}
		errtest.Must(t, deletePod(t, cfg, pod))
		aPod(t, cfg, pod, node, "10.0.2.3/32", "")
		r.has(t, pod, "[10.0.2.3]")
		if before.UID == r.pod(pod).UID {
			t.Error("another pod of the name is taken for the same")
		}
		patchPod(t, cfg, pod, `{"status":{"phase":"Succeeded"}}`)
		r.has(t, pod, "gone")
	}
	r.feed.SetGround(ground{"10.0.0.0/16": "self"})
	aPod(t, cfg, "life/host", "self", "10.0.2.4/32", `,"hostNetwork":true`)
	aPod(t, cfg, "life/after", "self", "10.0.2.5/32", "")
	if r.has(t, "life/after", "[10.0.2.5]"); r.pod("life/host") != nil || len(r.view.Local) != 1 {
		t.Error(r)
	}
	// What is being deleted keeps its place until its address is released.
	errtest.Must(t, raw(t, cfg, http.MethodDelete, fmt.Sprintf(podPath, "life")+"/after", ""))
	patchPod(t, cfg, "life/after", `{"metadata":{"annotations":{"cni.projectcalico.org/podIPs":"10.0.2.6/32"}}}`)
	r.has(t, "life/after", "[10.0.2.6]")
	patchPod(t, cfg, "life/after", `{"status":{"phase":"Failed"}}`)
	r.has(t, "life/after", "gone")
}
