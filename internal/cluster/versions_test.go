package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

const cnpGroup = "/apis/policy.networking.k8s.io"

// cnpIn is the path of ClusterNetworkPolicies in a version.
func cnpIn(version string) string { return cnpGroup + "/" + version + "/clusternetworkpolicies" }

// clusterPolicyIn is a policy in a version.
func clusterPolicyIn(version, name string) string {
	return strings.Replace(clusterPolicy(name, `,"egress":[{"action":"Deny","to":[{"networks":["192.0.2.0/24"]}]}]`), "v1alpha2", version, 1)
}

// definitionOf is the definition of network-policy-api's release, with the first of the versions stored. Versions that
// it does not have are made of one that it has.
func definitionOf(t *testing.T, served []string) (definition map[string]any) {
	t.Helper()
	text, err := os.ReadFile(labtest.ClusterNetworkPolicyDefinition(t))
	errtest.Must(t, err)
	errtest.Must(t, yaml.Unmarshal(text, &definition))
	spec := definition["spec"].(map[string]any)
	has := spec["versions"].([]any)
	var all []any
	for i, name := range []string{"v1alpha2", "v1beta1", "v1beta2"} { // all, since stored versions must stay
		version := map[string]any{}
		text, err := json.Marshal(has[min(i, len(has)-1)])
		errtest.Must(t, err)
		errtest.Must(t, json.Unmarshal(text, &version))
		version["name"], version["served"], version["storage"] = name, slices.Contains(served, name), name == served[0]
		all = append(all, version)
	}
	spec["versions"] = all
	return definition
}

// define creates the definition for a test, and returns when the API server serves these versions and no others.
func define(t *testing.T, cfg *rest.Config, served ...string) {
	t.Helper()
	text, err := json.Marshal(definitionOf(t, served))
	errtest.Must(t, err)
	put(t, cfg, definitionPath, cnpName, string(text))
	awaitServed(t, cfg, served...)
}

// serve changes the definition, and returns when the API server serves these versions and no others.
func serve(t *testing.T, cfg *rest.Config, served ...string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"spec": definitionOf(t, served)["spec"]})
	errtest.Must(t, err)
	errtest.Must(t, raw(t, cfg, http.MethodPatch, definitionPath+"/"+cnpName, string(text)))
	awaitServed(t, cfg, served...)
}

func awaitServed(t *testing.T, cfg *rest.Config, served ...string) {
	t.Helper()
	waittest.For(t, 20*time.Second, func() error {
		for _, version := range []string{"v1alpha2", "v1beta1", "v1beta2"} {
			if err := raw(t, cfg, http.MethodGet, cnpIn(version), ""); (err == nil) != slices.Contains(served, version) {
				return fmt.Errorf("%s: %w", version, err)
			}
		}
		return nil
	})
}

// requestsOf notes the requests about ClusterNetworkPolicies with their paths.
type requestsOf struct {
	mu   sync.Mutex
	seen []string
}

func (a *requestsOf) note(r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, cnpGroup)
	if !ok {
		return
	}
	words := "get " + path
	switch q := r.URL.Query(); {
	case q.Get("sendInitialEvents") != "":
		words = "stream " + path
	case q.Get("watch") != "":
		words = "watch " + path
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, words)
}

// take returns the requests since the last call, in order.
func (a *requestsOf) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := a.seen
	a.seen = nil
	return seen
}

// follows waits until the requests of the pattern have been made, and no others. There may be repetitions, the last of
// which may be incomplete. For policies there must be streams and watches, no lists.
func (a *requestsOf) follows(t *testing.T, what string, pattern ...string) {
	t.Helper()
	var seen []string
	waittest.Until(t, 20*time.Second, what, func() bool {
		seen = append(seen, a.take()...)
		return len(seen) >= len(pattern)
	})
	for i, words := range seen {
		verb, path, _ := strings.Cut(words, " ")
		if path != pattern[i%len(pattern)] || (verb == "get") == strings.HasSuffix(path, "/clusternetworkpolicies") {
			t.Fatalf("%s: asked\n\t%s\nwant again and again\n\t%s", what, strings.Join(seen, "\n\t"), strings.Join(pattern, "\n\t"))
		}
	}
}

// versionsFeed starts a feed that looks often for definitions, and notes its requests.
func versionsFeed(t *testing.T) (r *reader, f *faulty, asked *requestsOf) {
	t.Helper()
	f, cfg := newFaulty(t, labtest.RESTConfig(t))
	asked = &requestsOf{}
	f.answers(func(rw http.ResponseWriter, r *http.Request) { asked.note(r); f.through.ServeHTTP(rw, r) })
	feed, err := NewPolicyFeed(Server{Config: cfg, Group: labtest.Current(t)}, "self", slog.New(slog.NewTextHandler(t.Output(), nil)))
	errtest.Must(t, err)
	for _, by := range feed.followers {
		by.absence = wait.Backoff{First: 50 * time.Millisecond, Most: 50 * time.Millisecond}
	}
	return startFeed(t, feed), f, asked
}

// policyKeeper writes policies and sees to it that the reader never misses one.
type policyKeeper struct {
	*reader
	cfg  *rest.Config
	told map[string]bool // policies that the reader has had
}

// create creates a policy in a version, waits until the reader has it, and returns in which version that read it.
func (k *policyKeeper) create(t *testing.T, version, name string) (read string) {
	t.Helper()
	errtest.Must(t, raw(t, k.cfg, http.MethodPost, cnpIn(version), clusterPolicyIn(version, name)))
	k.await(t, name, func(*PolicyView) bool { read = k.versions(t)[name]; return read != "" })
	k.told[name] = true
	return read
}

// versions returns in which version each policy was read; one that was there must not be missing.
func (k *policyKeeper) versions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, p := range k.view.ClusterNetworkPolicies {
		versions[p.Name] = p.ResourceType().Version
	}
	for name := range k.told {
		if versions[name] == "" {
			t.Fatalf("policy %s is lost: %v", name, versions)
		}
	}
	return versions
}

// The definition gains and loses versions while a feed runs: it follows in the preferred one that is served, loses
// nothing, and makes one request for each version up to that.
func TestVersionsOfClusterNetworkPolicy(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	define(t, cfg, "v1alpha2")
	errtest.Must(t, raw(t, cfg, http.MethodPost, cnpIn("v1alpha2"), clusterPolicyIn("v1alpha2", "before")))
	r, _, asked := versionsFeed(t)
	r.await(t, "listed", func(v *PolicyView) bool { return v.Listed })
	keeper := &policyKeeper{reader: r, cfg: cfg, told: map[string]bool{"before": true}}
	const preferred, second = "/v1beta1/clusternetworkpolicies", "/v1alpha2/clusternetworkpolicies"
	asked.follows(t, "v1alpha2 at the start", preferred, second)
	if got := keeper.versions(t)["before"]; got != "v1alpha2" {
		t.Errorf("read in %s", got)
	}
	for i, c := range []struct {
		served []string // the first is stored
		asked  []string
		want   string
	}{
		{[]string{"v1beta1", "v1alpha2"}, []string{preferred}, "v1beta1"}, // as release v0.3 of network-policy-api after v0.2
		{[]string{"v1beta1"}, []string{preferred}, "v1beta1"},
		{[]string{"v1beta1", "v1beta2"}, []string{preferred}, "v1beta1"},
		{[]string{"v1alpha2", "v1beta2"}, []string{preferred, second}, "v1alpha2"},
		{[]string{"v1beta1"}, []string{preferred}, "v1beta1"},
	} {
		serve(t, cfg, c.served...)
		keeper.create(t, c.served[0], fmt.Sprintf("early-%d", i)) // the former watch goes on for a second
		what := fmt.Sprintf("%v served", c.served)
		asked.follows(t, what, c.asked...)
		r.await(t, what, func(v *PolicyView) bool { return v.Err == nil })
		if got := keeper.create(t, c.served[0], fmt.Sprintf("late-%d", i)); got != c.want {
			t.Errorf("%s: read in %s", what, got)
		}
		delete(keeper.told, fmt.Sprintf("early-%d", i))
		errtest.Must(t, raw(t, cfg, http.MethodDelete, cnpIn(c.served[0])+fmt.Sprintf("/early-%d", i), ""))
		r.await(t, "a deletion", func(*PolicyView) bool { return keeper.versions(t)[fmt.Sprintf("early-%d", i)] == "" })
	}
}

// A definition that serves only unknown versions hides no policies: known ones stay, and the error has the remedy. It
// takes two requests, after one for each known version.
func TestUnknownVersionOfClusterNetworkPolicy(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	define(t, cfg, "v1beta1")
	r, _, asked := versionsFeed(t)
	r.await(t, "listed", func(v *PolicyView) bool { return v.Listed })
	keeper := &policyKeeper{reader: r, cfg: cfg, told: map[string]bool{}}
	keeper.create(t, "v1beta1", "known")
	asked.take()
	serve(t, cfg, "v1beta2")
	strange := func(v *PolicyView) bool {
		keeper.versions(t)
		var of *VersionError
		return errors.As(v.Err, &of) && slices.Equal(of.Served, []string{"v1beta2"}) && len(of.Of) == 2 &&
			strings.Contains(of.Error(), "only as v1beta2, and this release reads v1beta1 and v1alpha2: let spec.versions of the definition serve")
	}
	r.await(t, "its error", strange)
	asked.follows(t, "v1beta2 alone", "/v1beta1/clusternetworkpolicies", "/v1alpha2/clusternetworkpolicies", "", "/v1beta2")
	late, _, _ := versionsFeed(t)
	late.await(t, "the error of a feed that begins", strange)
	if late.view.Listed {
		t.Error("a feed that can read no policies takes them for listed")
	}
	serve(t, cfg, "v1beta2", "v1alpha2")
	late.await(t, "the policy", func(v *PolicyView) bool { return v.Listed && v.Err == nil && len(v.ClusterNetworkPolicies) == 1 })
	r.await(t, "no error", func(v *PolicyView) bool { keeper.versions(t); return v.Err == nil })
	if got := keeper.create(t, "v1beta2", "next"); got != "v1alpha2" {
		t.Errorf("read in %s", got)
	}
}

// Other kinds of the group, and an API server that does not list its versions, do not make a missing definition an
// error; a failure to list them does.
func TestVersionsThatAreNotTold(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	const other = "adminnetworkpolicies.policy.networking.k8s.io"
	put(t, cfg, definitionPath, other, strings.NewReplacer("clusternetworkpolicies", "adminnetworkpolicies",
		"ClusterNetworkPolicy", "AdminNetworkPolicy", "v1alpha2", "v1alpha1").Replace(cnpDefinition))
	waittest.For(t, 20*time.Second, func() error { return raw(t, cfg, http.MethodGet, cnpGroup+"/v1alpha1/adminnetworkpolicies", "") })
	awaitServed(t, cfg) // an earlier test's definition may still be being deleted
	r, f, asked := versionsFeed(t)
	r.await(t, "listed", func(v *PolicyView) bool { return v.Listed })
	asked.follows(t, "no such kind", "/v1beta1/clusternetworkpolicies", "/v1alpha2/clusternetworkpolicies", "", "/v1alpha1")
	for _, c := range []struct {
		code int
		fine bool
	}{
		{http.StatusInternalServerError, false}, {http.StatusForbidden, true},
		{http.StatusInternalServerError, false}, {http.StatusNotFound, true},
	} {
		f.answers(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == cnpGroup {
				rw.Header().Set("Content-Type", "application/json")
				rw.WriteHeader(c.code)
				fmt.Fprintf(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`,
					strings.ReplaceAll(http.StatusText(c.code), " ", ""), c.code)
				return
			}
			f.through.ServeHTTP(rw, r)
		})
		r.await(t, fmt.Sprint(c.code), func(v *PolicyView) bool { return (v.Err == nil) == c.fine })
	}
}

// What a round of requests has found out counts until the next, and not for the second list that is asked for in doubt.
func TestVersionsAreLookedForAgain(t *testing.T) {
	direct := labtest.RESTConfig(t)
	define(t, direct, "v1alpha2")
	errtest.Must(t, raw(t, direct, http.MethodPost, cnpIn("v1alpha2"), clusterPolicyIn("v1alpha2", "again")))
	f, cfg := newFaulty(t, direct)
	of, err := newFeed(Server{Config: cfg, Group: labtest.Current(t)}, slog.New(slog.DiscardHandler))
	errtest.Must(t, err)
	src := &source[api.ClusterNetworkPolicy]{optional: true, of: (*api.ClusterNetworkPolicy)(nil).ResourceType()}
	asked, err := newVersions(&of, src.name, typesOf(src), formOf[api.ClusterNetworkPolicy]())
	errtest.Must(t, err)
	list := func() error {
		_, err := inServed(t.Context(), asked, func(client *clients) (any, error) {
			return src.request(client, metav1.ListOptions{}, "").Do(t.Context()).Get()
		})
		return err
	}
	unknown := f.knowsNo("clusternetworkpolicies")
	if err := list(); !missing(err) || unknown.Load() != 2 {
		t.Errorf("%d requests in two versions: %v", unknown.Load(), err)
	}
	f.answers(f.through.ServeHTTP)
	if err := list(); !missing(err) {
		t.Errorf("asked again in the same round: %v", err)
	}
	found, err := listAgain(src.request, src.optional, asked)(t.Context())
	errtest.Must(t, err)
	if l, ok := found.(*objectList[api.ClusterNetworkPolicy]); !ok || len(l.Items) != 1 || l.Items[0].value.Name != "again" {
		t.Errorf("the second list is %+v", found)
	}
	errtest.Must(t, list())
}
