package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

const (
	definitionPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	cnpName        = "clusternetworkpolicies.policy.networking.k8s.io"
	// cnpDefinition takes any spec: what is in it is others' test.
	cnpDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"clusternetworkpolicies.policy.networking.k8s.io",
			"annotations":{"api-approved.kubernetes.io":"unapproved, for a test"}},
		"spec":{"group":"policy.networking.k8s.io","scope":"Cluster","names":{"kind":"ClusterNetworkPolicy","plural":"clusternetworkpolicies"},
		"versions":[{"name":"v1alpha2","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object",
		"x-kubernetes-preserve-unknown-fields":true}}}]}}`
)

func clusterPolicy(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"policy.networking.k8s.io/v1alpha2","kind":"ClusterNetworkPolicy","metadata":{"name":%q},
		"spec":{"tier":"Admin","priority":1,"subject":{"namespaces":{}}%s}}`, name, spec)
}

func TestPolicyFeedFollowsPolicies(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	aNamespace(t, cfg, "policies")
	r := feedAt(t, labtest.As(t, "tortie-node")) // the chart's rights are enough
	r.want(t, policy.Interest{All: true})
	networkPolicy(t, cfg, "policies", "one")
	r.await(t, "a policy", func(v *PolicyView) bool { return v.More && len(v.NetworkPolicies) == 1 })
	one := r.view.NetworkPolicies[0]
	if one.Namespace != "policies" || one.Name != "one" || one.UID == "" || one.Labels != nil || len(one.Spec.Ingress) != 1 {
		t.Errorf("%+v", one)
	}
	path := fmt.Sprintf(npPath, "policies") + "/one"
	for _, what := range []string{`{"metadata":{"labels":{"new":"label"}}}`, `{"spec":{"policyTypes":["Ingress","Egress"]}}`} {
		errtest.Must(t, raw(t, cfg, http.MethodPatch, path, what))
	}
	r.await(t, "its other state", func(v *PolicyView) bool { return len(v.NetworkPolicies[0].Spec.PolicyTypes) == 2 })
	if len(one.Spec.PolicyTypes) != 1 {
		t.Error("a policy that was handed out has changed")
	}
	errtest.Must(t, raw(t, cfg, http.MethodPatch, nsPath+"/policies", `{"metadata":{"labels":{"team":"red"}}}`))
	r.await(t, "a label", func(v *PolicyView) bool { return v.More && v.Namespaces["policies"]["team"] == "red" })
	errtest.Must(t, raw(t, cfg, http.MethodDelete, path, ""))
	r.await(t, "its end", func(v *PolicyView) bool { return v.More && len(v.NetworkPolicies) == 0 })
}

// Annotations and status of what policies depend on wake nobody, nor do pods without an address. Events of one kind
// come in their order: with a change that does wake, those before it have been seen.
func TestPolicyFeedSleeps(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	aNamespace(t, cfg, "sleeps")
	networkPolicy(t, cfg, "sleeps", "one")
	aPod(t, cfg, "sleeps/own", "self", "10.0.3.1/32", "")
	aPod(t, cfg, "sleeps/other", "elsewhere", "10.0.3.2/32", "")
	f, err := NewPolicyFeed(Server{Config: cfg}, "self", slog.New(slog.NewTextHandler(t.Output(), nil)))
	errtest.Must(t, err)
	f.changed = make(chan struct{}, 1000) // which counts the wake-ups
	r := startFeed(t, f)
	r.want(t, policy.Interest{All: true})
	r.has(t, "sleeps/other", "[10.0.3.2]")
	for quiet := false; !quiet; r.take() {
		select {
		case <-r.feed.Changed():
		case <-time.After(300 * time.Millisecond):
			quiet = true
		}
	}
	const rounds = 10 // more than the wake-ups for the changes after them
	paths := []string{fmt.Sprintf(npPath, "sleeps") + "/one", nsPath + "/sleeps", fmt.Sprintf(podPath, "sleeps") + "/own",
		fmt.Sprintf(podPath, "sleeps") + "/other"}
	for i := range rounds {
		for _, path := range paths {
			errtest.Must(t, raw(t, cfg, http.MethodPatch, path, fmt.Sprintf(`{"metadata":{"annotations":{"some":"note %d"}}}`, i)))
		}
		for _, pod := range []string{"sleeps/own", "sleeps/other"} {
			patchPod(t, cfg, pod, fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","message":"%d"}]}}`, i))
		}
		aPod(t, cfg, fmt.Sprint("sleeps/pending-", i), "elsewhere", "", "")
	}
	errtest.Must(t, raw(t, cfg, http.MethodPatch, paths[0], `{"spec":{"podSelector":{"matchLabels":{"last":"yes"}}}}`))
	for _, path := range paths[1:] {
		errtest.Must(t, raw(t, cfg, http.MethodPatch, path, `{"metadata":{"labels":{"last":"yes"}}}`))
	}
	waittest.Until(t, 20*time.Second, "a change that wakes is not seen", func() bool {
		r.take()
		own, other := r.pod("sleeps/own"), r.pod("sleeps/other")
		return own.Labels["last"] == "yes" && other.Labels["last"] == "yes" && r.view.Namespaces["sleeps"]["last"] == "yes" &&
			slices.ContainsFunc(r.view.NetworkPolicies, func(p *api.NetworkPolicy) bool { return p.Spec.PodSelector.MatchLabels["last"] == "yes" })
	})
	if n := len(f.changed); n == 0 || n >= rounds {
		t.Errorf("%d wake-ups for four changes, after %d of each kind that are none", n, rounds)
	}
}

// The definition of ClusterNetworkPolicy may be missing, come later, and go again. Nodes are followed while one selects
// nodes.
func TestClusterNetworkPoliciesComeAndGo(t *testing.T) {
	cfg, _, asked := recorded(t)
	node := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"cnp-node","labels":{"zone":"a"},
		"annotations":{"projectcalico.org/IPv4IPIPTunnelAddr":"10.0.4.1"}},
		"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},{"type":"Hostname","address":"cnp-node"}]}}`
	put(t, cfg, nodePath, "cnp-node", node)
	errtest.Must(t, raw(t, cfg, http.MethodPatch, nodePath+"/cnp-node/status",
		`{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},{"type":"Hostname","address":"cnp-node"}]}}`))
	f, err := NewPolicyFeed(Server{Config: cfg, Group: labtest.Current(t)}, "self", slog.New(slog.NewTextHandler(t.Output(), nil)))
	errtest.Must(t, err)
	for _, by := range f.followers {
		by.absence = wait.Backoff{First: 50 * time.Millisecond, Most: 50 * time.Millisecond}
	}
	r := startFeed(t, f)
	r.want(t, policy.Interest{})
	requests := 0
	waittest.Until(t, 20*time.Second, "policies are looked for again", func() bool {
		for _, words := range asked.take() {
			if strings.Contains(words, "clusternetworkpolicies") {
				requests++
			}
		}
		return requests > 2
	})
	if r.take(); r.view.Err != nil {
		t.Errorf("that a definition is missing is no error: %v", r.view.Err)
	}
	put(t, cfg, definitionPath, cnpName, cnpDefinition)
	waittest.For(t, 20*time.Second, func() error { return raw(t, cfg, http.MethodPost, cnpPath, clusterPolicy("first", "")) })
	t.Cleanup(func() { _ = raw(t, cfg, http.MethodDelete, cnpPath+"/first", "") })
	r.await(t, "a policy", func(v *PolicyView) bool { return v.More && len(v.ClusterNetworkPolicies) == 1 })
	if c := r.view.ClusterNetworkPolicies[0]; c.Name != "first" || c.Spec.Priority != 1 || !r.view.NodesKnown || r.view.Nodes != nil {
		t.Errorf("%+v", r.view)
	}
	asked.take()
	toNodes := `,"egress":[{"action":"Deny","to":[{"nodes":{}}]}]`
	put(t, cfg, cnpPath, "nodes", clusterPolicy("nodes", toNodes))
	r.await(t, "nodes", func(v *PolicyView) bool {
		return len(v.ClusterNetworkPolicies) == 2 && v.NodesKnown && len(v.Nodes) > 0
	})
	if n := r.view.Nodes["cnp-node"]; n.Labels["zone"] != "a" || fmt.Sprint(n.Addresses) != "[192.0.2.1]" || len(r.view.Strays) != 1 ||
		r.view.Strays[0].Name != "cnp-node" {
		t.Errorf("a tunnel's address in a block of another node: %+v, %v", n, r.view.Strays)
	}
	f.SetGround(ground{"10.0.4.0/24": "cnp-node"})
	r.await(t, "the tunnel's address", func(v *PolicyView) bool { return len(v.Strays) == 0 })
	if n := r.view.Nodes["cnp-node"]; fmt.Sprint(n.Addresses) != "[10.0.4.1 192.0.2.1]" {
		t.Errorf("a tunnel's address in a block of the node: %+v", n)
	}
	if got := asked.take(); !slices.Equal(slices.DeleteFunc(got,
		func(r string) bool { return !strings.Contains(r, " nodes") || strings.HasPrefix(r, "list nodes") }), []string{"watch nodes"}) {
		t.Errorf("asked %v", got)
	}
	errtest.Must(t, raw(t, cfg, http.MethodDelete, definitionPath+"/"+cnpName, ""))
	r.await(t, "their end", func(v *PolicyView) bool { return len(v.ClusterNetworkPolicies) == 0 })
}

// A doubtful list is one that lacks all objects, or most of many.
func TestDoubt(t *testing.T) {
	for _, c := range []struct {
		known, gone int
		want        bool
	}{{1, 1, true}, {10, 10, true}, {10, 9, false}, {11, 5, false}, {11, 6, true}, {12, 6, false}, {1000, 1000, true}, {0, 0, false}} {
		if got := mostGone(c.known, c.gone); got != c.want {
			t.Errorf("%d of %d: %v", c.gone, c.known, got)
		}
	}
	named := func(count int) (list []*object[api.NetworkPolicy]) {
		for i := range count {
			o := &object[api.NetworkPolicy]{}
			o.value.Namespace, o.value.Name = "ns", fmt.Sprint(i)
			list = append(list, o)
		}
		return list
	}
	for name, c := range map[string]struct {
		known, first, second int
		err                  error
		want                 int
	}{
		"few are gone":                             {12, 7, -1, nil, 7},
		"all are gone, and still are":              {12, 0, 0, nil, 0},
		"most are gone, and some come back":        {12, 2, 3, nil, 2},
		"all are gone, and then not":               {12, 0, 12, nil, 12},
		"all are gone, and no second answer":       {12, 0, 0, fmt.Errorf("no answer"), 12},
		"most of few are gone":                     {10, 1, -1, nil, 1},
		"all of few are gone, and still are":       {10, 0, 0, nil, 0},
		"all of few are gone, and then one is not": {10, 0, 1, nil, 10},
		"the only one is gone, and then not":       {1, 0, 1, nil, 1},
		"there was none":                           {0, 0, -1, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			s := &doubtfulStore[api.NetworkPolicy]{
				objectStore: newObjectStore(sameNetworkPolicy, func(*api.NetworkPolicy) {}),
				by:          &follower{log: slog.New(slog.NewTextHandler(t.Output(), nil)), ctx: t.Context()},
				again: func(context.Context) (runtime.Object, error) {
					asked++
					return &objectList[api.NetworkPolicy]{Items: named(max(c.second, 0))}, c.err
				},
			}
			replace := func(count int) error {
				var list []any
				for _, o := range named(count) {
					list = append(list, o)
				}
				return s.Replace(list, "")
			}
			if err := replace(c.known); err != nil || asked != 0 {
				t.Fatal(err)
			}
			err := replace(c.first)
			if got := len(s.each()); got != c.want || (err == nil) != (c.want == c.first) || asked != min(c.second+1, 1) {
				t.Errorf("%d policies, %d times asked, %v; want %d", got, asked, err, c.want)
			}
			if failed := s.by.failure(); (failed == nil) != (err == nil) {
				t.Errorf("%v is told as %v", err, failed)
			}
		})
	}
}

// An API server that lists nothing of a kind for once takes none of it away; one that goes on does.
func TestPolicyFeedOfAnEmptyServer(t *testing.T) {
	const many = fewObjects + 2
	cfg := labtest.RESTConfig(t)
	aNamespace(t, cfg, "doubt")
	put(t, cfg, definitionPath, cnpName, cnpDefinition)
	waittest.For(t, 20*time.Second, func() error {
		return raw(t, cfg, http.MethodPost, cnpPath, clusterPolicy("doubt", `,"egress":[{"action":"Deny","to":[{"nodes":{}}]}]`))
	})
	for i := range many {
		node := fmt.Sprintf("doubt-%d", i)
		put(t, cfg, nodePath, node, fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, node))
		aNamespace(t, cfg, fmt.Sprintf("doubt-%d", i))
		networkPolicy(t, cfg, "doubt", fmt.Sprintf("np-%d", i))
		for j, node := range []string{"self", "elsewhere"} {
			aPod(t, cfg, fmt.Sprintf("doubt/%s-%d", node, i), node, fmt.Sprintf("10.0.9.%d/32", 2*i+j), "")
		}
	}
	t.Run("kinds", func(t *testing.T) { // their objects outlast them
		for name, of := range map[string]struct { // in full: two groups have networkpolicies
			path, fields string
			count        func(*PolicyView) int
		}{
			"nodes":      {"/api/v1/nodes", "", func(v *PolicyView) int { return len(v.Nodes) }},
			"policies":   {"/apis/networking.k8s.io/v1/networkpolicies", "", func(v *PolicyView) int { return len(v.NetworkPolicies) }},
			"namespaces": {"/api/v1/namespaces", "", func(v *PolicyView) int { return len(v.Namespaces) }},
			"own pods":   {"/api/v1/pods", "spec.nodeName=self", func(v *PolicyView) int { return len(v.Local) }},
			"other pods": {"/api/v1/namespaces/doubt/pods", running, func(v *PolicyView) int { return len(v.Pods) - len(v.Local) }},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				emptyOf(t, func(r *http.Request) bool {
					return r.URL.Path == of.path && r.URL.Query().Get("fieldSelector") == of.fields
				}, of.count)
			})
		}
	})
}

// emptyOf lets a server list nothing for requests of one kind: first once, then for good.
func emptyOf(t *testing.T, about func(*http.Request) bool, count func(*PolicyView) int) {
	cfg, f, _ := recorded(t)
	r := feedAt(t, cfg)
	r.want(t, policy.Interest{Namespaces: []string{"doubt"}})
	all := func(v *PolicyView) bool { return count(v) > fewObjects }
	r.await(t, "all", all)
	for _, lasting := range []bool{false, true} {
		var second atomic.Int32
		f.answers(emptying(f, about, lasting, &second))
		f.server.CloseClientConnections()
		waittest.Until(t, 30*time.Second, "there is no second list", func() bool {
			if r.take(); !lasting && !all(&r.view) {
				t.Fatal("objects were taken away")
			}
			return second.Load() > 0
		})
		if !lasting {
			f.answers(f.through.ServeHTTP)
			r.await(t, "the server is itself again", func(v *PolicyView) bool { return all(v) && v.Err == nil })
		}
	}
	r.await(t, "they are gone", func(v *PolicyView) bool { return count(v) == 0 })
}

// emptying shows reflectors nothing of a kind; to the list that is asked for in doubt only if it is lasting.
func emptying(f *faulty, about func(*http.Request) bool, lasting bool, second *atomic.Int32) http.HandlerFunc {
	var expired atomic.Bool
	return func(rw http.ResponseWriter, r *http.Request) {
		if !about(r) {
			f.through.ServeHTTP(rw, r)
			return
		}
		q := r.URL.Query()
		if q.Get("watch") != "" && !expired.Swap(true) { // a list that was on its way already is emptied, too
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusGone)
			fmt.Fprint(rw,
				`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}`)
			return
		}
		again := q.Get("watch") == "" && q.Get("limit") == ""
		if again {
			second.Add(1)
		}
		if lasting || !again {
			q.Set("labelSelector", "no.such/label")
			r.URL.RawQuery = q.Encode()
		}
		f.through.ServeHTTP(rw, r)
	}
}

// A feed without the right to read reports it, and is not complete.
func TestPolicyFeedWithoutRights(t *testing.T) {
	r := feedAt(t, refusing(t, "/pods"))
	r.await(t, "its complaint", func(v *PolicyView) bool { return apierrors.IsForbidden(v.Err) })
	r.feed.Want(policy.Interest{})
	if r.take(); r.view.Listed || r.view.Complete {
		t.Error(r)
	}
}

// An agent first asks what matters, and then waits for it; what comes to matter later is asked for beside.
func TestPolicyFeedIsComplete(t *testing.T) {
	cfg, f, _ := recorded(t)
	aNamespace(t, cfg, "complete")
	f.answers(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/slow/pods") {
			<-r.Context().Done()
			return
		}
		f.through.ServeHTTP(rw, r)
	})
	r := feedAt(t, cfg)
	if r.take(); r.view.Listed || r.view.Complete {
		t.Error("complete before the first list")
	}
	r.feed.Want(policy.Interest{}) // of a view that shows nothing yet
	r.await(t, "listed", func(v *PolicyView) bool { return v.Listed })
	slow, fast := policy.Interest{Namespaces: []string{"slow"}}, policy.Interest{Namespaces: []string{"complete"}}
	r.feed.Want(policy.Interest{Namespaces: []string{"slow", "complete"}})
	r.await(t, "one of two", func(v *PolicyView) bool { return v.Knows(fast) })
	if r.view.Complete || r.view.Knows(slow) {
		t.Error(r)
	}
	r.feed.Want(fast)
	r.await(t, "complete", func(v *PolicyView) bool { return v.Complete })
	r.feed.Want(policy.Interest{Namespaces: []string{"slow", "complete"}})
	if r.take(); !r.view.Complete || r.view.Knows(slow) || !r.view.Knows(fast) {
		t.Error(r)
	}
}
