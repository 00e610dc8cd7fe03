package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// raw sends an object as an operator's tool does, with whatever is in it, to the group of the servers of tests.
func raw(t *testing.T, cfg *rest.Config, method, path, body string) error {
	t.Helper()
	_, err := labtest.Send(cfg, method, labtest.InGroupText(t, path), labtest.InGroupText(t, body))
	return err
}

const (
	felixPath  = "/apis/crd.projectcalico.org/v1/felixconfigurations"
	secretPath = "/api/v1/namespaces/kube-system/secrets"
)

// put creates an object that goes with the test.
func put(t *testing.T, cfg *rest.Config, path, name, body string) {
	t.Helper()
	waittest.For(t, 20*time.Second, func() error { // an earlier test's definition of this name may still be being deleted
		return raw(t, cfg, http.MethodPost, path, body)
	})
	t.Cleanup(func() { _ = raw(t, cfg, http.MethodDelete, path+"/"+name, "") })
}

func felix(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"FelixConfiguration","metadata":{"name":%q},"spec":%s}`, name, spec)
}

// This node's settings come from its own objects, then from the cluster's. What this project does not know stays in
// them.
func TestSettingsOfThisNode(t *testing.T) {
	w, store := watchReal(t)
	cfg := labtest.RESTConfig(t)
	put(t, cfg, felixPath, "default",
		felix("default", `{"ipipMTU":1400,"natPortRange":32768,"natOutgoingExclusions":"IPPoolsAndHostIPs","bpfEnabled":false}`))
	put(t, cfg, felixPath, "node.watched",
		felix("node.watched", `{"ipipMTU":1300,"natPortRange":"1000:2000","allowIPIPPacketsFromWorkloads":true}`))
	put(t, cfg, felixPath, "node.other", felix("node.other", `{"ipipMTU":1200}`))
	create(t, store, &api.BGPConfiguration{Meta: api.Meta{Name: "node.watched"}, Spec: api.BGPConfigurationSpec{ListenPort: 1790}})
	await(t, w, func(world state.Cluster) bool {
		f := world.Felix
		return f.IPIPMTU != nil && *f.IPIPMTU == 1300 && f.NATOutgoingExclusions == "IPPoolsAndHostIPs" &&
			f.AllowIPIPPacketsFromWorkloads != nil && *f.AllowIPIPPacketsFromWorkloads && f.NATPortRange != nil && *f.NATPortRange == "1000:2000" &&
			world.OwnBGP.ListenPort == 1790
	})
	before := w.Cluster().Revision
	errtest.Must(t, raw(t, cfg, http.MethodDelete, felixPath+"/node.watched", ""))
	await(t, w, func(world state.Cluster) bool {
		return *world.Felix.IPIPMTU == 1400 && *world.Felix.NATPortRange == "32768" && world.Felix.AllowIPIPPacketsFromWorkloads == nil
	})
	if after := w.Cluster().Revision; after <= before {
		t.Errorf("revision %d, then %d", before, after)
	}
	// Calico's other fields are neither pruned by the definition nor refused.
	f := &api.FelixConfiguration{Meta: api.Meta{Name: "default"}}
	errtest.Must(t, store.Get(t.Context(), f))
	errtest.Must(t, raw(t, cfg, http.MethodPatch, felixPath+"/default", `{"spec":{"ipipMTU":1401}}`))
	await(t, w, func(world state.Cluster) bool { return *world.Felix.IPIPMTU == 1401 })
}

// BFD of the mesh is asked for by an annotation of the cluster's BGPConfiguration, and of no node's.
func TestMeshBFD(t *testing.T) {
	w, store := watchReal(t)
	annotated := func(name, value string) *api.BGPConfiguration {
		return &api.BGPConfiguration{Meta: api.Meta{Name: name, Annotations: map[string]string{api.AnnotationBFD: value}}}
	}
	create(t, store, annotated("node.watched", "3x50ms"))
	create(t, store, annotated(api.DefaultName, "3x300ms"))
	await(t, w, func(world state.Cluster) bool { return world.MeshBFD == "3x300ms" })
	errtest.Must(t, raw(t, labtest.RESTConfig(t), http.MethodPatch, "/apis/crd.projectcalico.org/v1/bgpconfigurations/default",
		`{"metadata":{"annotations":null}}`))
	await(t, w, func(world state.Cluster) bool { return world.MeshBFD == "" })
}

// This node's own status is followed; heartbeats are not.
func TestOwnNode(t *testing.T) {
	w, store := watchReal(t)
	create(t, store, &api.Node{Meta: api.Meta{Name: "watched"}})
	n := &api.Node{Meta: api.Meta{Name: "watched"}}
	status := func(s map[string]any) {
		t.Helper()
		errtest.Must(t, store.PatchStatus(t.Context(), n, kubernetes.Patch{Status: s}, false))
	}
	status(map[string]any{"addresses": []api.NodeAddress{{Type: "InternalIP", Address: "10.0.0.9"}}})
	await(t, w, func(world state.Cluster) bool { return world.Self != nil && len(world.Self.Status.Addresses) == 1 })
	status(map[string]any{"conditions": []api.NodeCondition{{Type: api.NetworkUnavailable, Status: "True", Reason: "NoRouteCreated"}}})
	await(t, w, func(world state.Cluster) bool {
		c := world.Self.Status.Conditions
		return len(c) == 1 && c[0].Status == "True"
	})
	drain(w)
	before := w.Revision()
	for i := range beats {
		at := time.Unix(int64(i), 0).UTC().Format(time.RFC3339)
		status(map[string]any{"conditions": []api.NodeCondition{
			{Type: "Ready", Status: "True"},
			{Type: api.NetworkUnavailable, Status: "True", Reason: "NoRouteCreated", LastHeartbeatTime: at},
		}})
	}
	status(map[string]any{"conditions": []api.NodeCondition{{Type: api.NetworkUnavailable, Status: "False", Reason: "NoRouteCreated"}}})
	await(t, w, func(world state.Cluster) bool { return world.Self.Status.Conditions[0].Status == "False" })
	wantNoBeats(t, w, before)
}

func meshWith(ref string) string {
	return fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"BGPConfiguration","metadata":{"name":"default"},`+
		`"spec":{"nodeMeshPassword":{"secretKeyRef":%s}}}`, ref)
}

func secret(name, data string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"stringData":%s}`, name, data)
}

// The one Secret that the configuration names is followed while it is named.
func TestMeshPassword(t *testing.T) {
	w, _ := watchReal(t)
	cfg := labtest.RESTConfig(t)
	if p := w.Cluster().MeshPassword; p.Set {
		t.Fatalf("without a configuration: set %v, %v", p.Set, p.Err)
	}
	says := func(what string) func(state.Cluster) bool {
		return func(world state.Cluster) bool {
			p := world.MeshPassword
			return p.Set && p.Text == "" && p.Err != nil && strings.Contains(p.Err.Error(), what)
		}
	}
	is := func(text string) func(state.Cluster) bool {
		return func(world state.Cluster) bool { return world.MeshPassword == state.Password{Set: true, Text: text} }
	}
	const bgpPath = "/apis/crd.projectcalico.org/v1/bgpconfigurations"
	put(t, cfg, bgpPath, "default", meshWith(`{"name":"bgp-one","key":"rr"}`))
	await(t, w, says("does not exist"))
	put(t, cfg, secretPath, "bgp-one", secret("bgp-one", `{"other":"x"}`))
	await(t, w, says(`no such key`))
	patch := func(path, body string) {
		t.Helper()
		errtest.Must(t, raw(t, cfg, http.MethodPatch, path, body))
	}
	patch(secretPath+"/bgp-one", `{"stringData":{"rr":"first\n"}}`)
	await(t, w, is("first"))
	patch(secretPath+"/bgp-one", `{"stringData":{"rr":"second"}}`)
	await(t, w, is("second"))
	patch(secretPath+"/bgp-one", fmt.Sprintf(`{"stringData":{"rr":%q}}`, strings.Repeat("x", 81)))
	await(t, w, says("80 at most"))
	patch(secretPath+"/bgp-one", `{"stringData":{"rr":""}}`)
	await(t, w, says("empty"))
	// Another Secret is named, and then none.
	put(t, cfg, secretPath, "bgp-two", secret("bgp-two", `{"rr":"third"}`))
	patch(bgpPath+"/default", `{"spec":{"nodeMeshPassword":{"secretKeyRef":{"name":"bgp-two"}}}}`)
	await(t, w, is("third"))
	patch(bgpPath+"/default", `{"spec":{"nodeMeshPassword":{"secretKeyRef":{"name":"bgp-three","optional":true}}}}`)
	await(t, w, func(world state.Cluster) bool { return world.MeshPassword == state.Password{} })
	patch(bgpPath+"/default", `{"spec":{"nodeMeshPassword":null}}`)
	await(t, w, func(world state.Cluster) bool { return world.MeshPassword == state.Password{} })
	followsSecrets(t, w, 0)
}

// followsSecrets waits until so many Secrets are followed.
func followsSecrets(t *testing.T, w *Watch, want int) {
	t.Helper()
	waittest.For(t, 10*time.Second, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := len(w.secrets); n != want {
			return fmt.Errorf("%d Secrets are followed, want %d", n, want)
		}
		return nil
	})
}

func peer(name, password string) string {
	return fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"BGPPeer","metadata":{"name":%q},"spec":{"peerIP":"10.9.9.9",`+
		`"asNumber":64999,"password":%s}}`, name, password)
}

// BGPFilters are followed.
func TestFilters(t *testing.T) {
	w, _ := watchReal(t)
	cfg := labtest.RESTConfig(t)
	const filterPath = "/apis/crd.projectcalico.org/v1/bgpfilters"
	put(t, cfg, filterPath, "no-default", `{"apiVersion":"crd.projectcalico.org/v1","kind":"BGPFilter","metadata":{"name":"no-default"},
		"spec":{"importV4":[{"action":"Reject","matchOperator":"Equal","cidr":"0.0.0.0/0"}]}}`)
	await(t, w, func(world state.Cluster) bool {
		return len(world.Filters) == 1 && len(world.Filters[0].Spec.ImportV4) == 1
	})
	errtest.Must(t, raw(t, cfg, http.MethodPatch, filterPath+"/no-default", `{"spec":{"exportV4":[{"action":"Accept"}]}}`))
	await(t, w, func(world state.Cluster) bool {
		return len(world.Filters) == 1 && len(world.Filters[0].Spec.ExportV4) == 1
	})
}

// BGPPeers are followed, and the Secrets that they name, each once.
func TestPeersAndTheirPasswords(t *testing.T) {
	w, _ := watchReal(t)
	cfg := labtest.RESTConfig(t)
	const peerPath = "/apis/crd.projectcalico.org/v1/bgppeers"
	put(t, cfg, peerPath, "tor-a", peer("tor-a", `{"secretKeyRef":{"name":"tor","key":"a"}}`))
	put(t, cfg, peerPath, "tor-b", peer("tor-b", `{"secretKeyRef":{"name":"tor","key":"b"}}`))
	put(t, cfg, peerPath, "tor-c", peer("tor-c", `{"secretKeyRef":{"name":"none","key":"c","optional":true}}`))
	put(t, cfg, peerPath, "tor-d",
		strings.Replace(peer("tor-d", "null"), `"metadata":{`, `"metadata":{"annotations":{"tortie.io/tcp-ao":"tor/d"},`, 1))
	a, b, d := api.Place{Name: "tor", Key: "a"}, api.Place{Name: "tor", Key: "b"}, api.Place{Name: "tor", Key: "d", TCPAO: true}
	c := api.Place{Name: "none", Key: "c", Optional: true}
	await(t, w, func(world state.Cluster) bool {
		p := world.Passwords
		return len(world.Peers) == 4 && p[d].Err != nil && p[a].Err != nil &&
			strings.Contains(p[a].Err.Error(), "does not exist") && p[c] == state.Password{}
	})
	followsSecrets(t, w, 2)
	keys := "1 hmac-sha1-96 " + strings.Repeat("x", maxPassword)
	put(t, cfg, secretPath, "tor", secret("tor", `{"a":"first","b":"second","d":"`+keys+`"}`))
	await(t, w, func(world state.Cluster) bool {
		return world.Passwords[d] == state.Password{Set: true, Text: keys} && world.Passwords[a] == state.Password{Set: true, Text: "first"} &&
			world.Passwords[b] == state.Password{Set: true, Text: "second"}
	})
	for _, name := range []string{"tor-a", "tor-b", "tor-c", "tor-d"} {
		errtest.Must(t, raw(t, cfg, http.MethodDelete, peerPath+"/"+name, ""))
	}
	await(t, w, func(world state.Cluster) bool { return len(world.Peers) == 0 && len(world.Passwords) == 0 })
	followsSecrets(t, w, 0)
}

// An agent without the right to read the Secret reports it; everything else works, including the proof of completeness.
func TestMeshPasswordThatMayNotBeRead(t *testing.T) {
	w := watchAt(t, labtest.As(t, "tortie-node"))
	cfg := labtest.RESTConfig(t)
	put(t, cfg, "/apis/crd.projectcalico.org/v1/bgpconfigurations", "default", meshWith(`{"name":"hidden","key":"rr"}`))
	await(t, w, func(world state.Cluster) bool {
		p := world.MeshPassword
		return p.Set && p.Err != nil && apierrors.IsForbidden(p.Err) &&
			strings.Contains(p.Err.Error(), "kube-system/hidden") && strings.Contains(p.Err.Error(), "bgp.passwordSecrets={hidden}") &&
			strings.Contains(p.Err.Error(), "Role kube-system/tortie-node-secrets")
	})
	proves(t, w) // a Secret that cannot be read does not stand in the way
}

// faulty stands between the watches and the API server and answers in its place.
type faulty struct {
	server  *httptest.Server
	through *httputil.ReverseProxy
	answer  atomic.Pointer[http.HandlerFunc]
	asked   atomic.Int32
}

func newFaulty(t *testing.T, cfg *rest.Config) (*faulty, *rest.Config) {
	t.Helper()
	target, err := url.Parse(cfg.Host)
	errtest.Must(t, err)
	transport, err := rest.TransportFor(cfg)
	errtest.Must(t, err)
	f := &faulty{through: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
	}}
	f.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		if answer := f.answer.Load(); answer != nil {
			(*answer)(rw, r)
			return
		}
		f.through.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() { f.server.CloseClientConnections(); f.server.Close() })
	return f, &rest.Config{Host: f.server.URL}
}

func (f *faulty) answers(h http.HandlerFunc) { f.answer.Store(&h) }

// knowsNo makes the server answer that it has no such resource, and counts how often it did.
func (f *faulty) knowsNo(plural string) *atomic.Int32 {
	asked := &atomic.Int32{}
	f.answers(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/"+plural) {
			asked.Add(1)
			http.NotFound(rw, r)
			return
		}
		f.through.ServeHTTP(rw, r)
	})
	return asked
}

// The definition of FelixConfiguration may be older than the agent, as Helm does not bring new ones: then there are
// none.
func TestADefinitionThatIsMissing(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	f, wired := newFaulty(t, cfg)
	f.knowsNo("felixconfigurations")
	w := watchAt(t, wired) // it waits for the first complete lists
	if w.Defaults().Felix {
		t.Error("there is a FelixConfiguration")
	}
	proves(t, w)
}

// An API server that does not know a definition for a moment, as after its start, takes no BGPPeer away.
func TestADefinitionThatIsMissingForAMoment(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	f, wired := newFaulty(t, cfg)
	const peerPath = "/apis/crd.projectcalico.org/v1/bgppeers"
	put(t, cfg, peerPath, "stays", peer("stays", "null"))
	w := watchAt(t, wired)
	await(t, w, func(world state.Cluster) bool { return len(world.Peers) == 1 })
	asked := f.knowsNo("bgppeers")
	f.server.CloseClientConnections()
	waittest.Until(t, 20*time.Second, "it is looked for", func() bool {
		if len(w.Cluster().Peers) != 1 {
			t.Fatal("it was taken away")
		}
		return asked.Load() >= 3
	})
	f.answer.Store(nil)
	put(t, cfg, peerPath, "comes", peer("comes", "null"))
	await(t, w, func(world state.Cluster) bool { return len(world.Peers) == 2 })
}

// awaitTries waits until each watch has sent so many requests in a row that brought nothing.
func awaitTries(t *testing.T, w *Watch, n int) {
	t.Helper()
	waittest.For(t, time.Minute, func() error {
		for _, f := range w.followers {
			f.mu.Lock()
			tries := f.tries
			f.mu.Unlock()
			if tries < n {
				return fmt.Errorf("%d requests for %s in a row brought nothing, want %d", tries, f.name, n)
			}
		}
		return nil
	})
}

// Pauses between requests that bring nothing double up to a bound, whatever these are answered.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, last := &follower{}, time.Now()
		for try := 1; try <= atOnce+14; try++ {
			f.pace(t.Context())
			want := time.Duration(0)
			if over := try - atOnce; over > 0 {
				want = min(minPause<<min(over, 10), maxPause)
			}
			if pause := time.Since(last); pause < want/2 || pause > want*3/2 {
				t.Errorf("before request %d: %v, want about %v", try, pause, want)
			}
			last = time.Now()
		}
	})
}

// Whatever the API server answers, it is asked ever less often, as pauses depend on the requests that brought nothing;
// and when it is itself again, all is seen.
func TestStormsOfErrors(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"errors": func(rw http.ResponseWriter, _ *http.Request) {
			http.Error(rw, "broken", http.StatusInternalServerError)
		},
		"gone": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusGone)
			fmt.Fprint(rw,
				`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}`)
		},
		"empty watches": func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("Content-Type", "application/json") },
		"nonsense": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			fmt.Fprint(rw, `{"type":"ADDED","object":[`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := labtest.RESTConfig(t)
			f, wired := newFaulty(t, cfg)
			w := watchAt(t, wired)
			store := storeAt(t, cfg)
			f.answers(answer)
			f.server.CloseClientConnections()
			awaitTries(t, w, atOnce+4)
			after := "after-" + strings.ReplaceAll(name, " ", "-")
			create(t, store, &api.IPPool{Meta: api.Meta{Name: after}, Spec: api.IPPoolSpec{CIDR: "10.83.0.0/16"}})
			f.answer.Store(nil)
			waittest.Until(t, 40*time.Second, "what changed meanwhile is seen", func() bool {
				return slices.ContainsFunc(w.Cluster().Pools, func(p api.IPPool) bool { return p.Name == after })
			})
		})
	}
}

// An API server that was absent and lost its state: known objects stay meanwhile, watches begin again, and see its new
// state.
func TestServerThatWasAway(t *testing.T) {
	t.Parallel()
	server := labtest.NewServer(t)
	cfg, err := Connect(server.Kubeconfig(), "test")
	errtest.Must(t, err)
	w, store := watchAt(t, cfg), storeAt(t, cfg)
	gone := &api.IPPool{Meta: api.Meta{Name: "gone"}, Spec: api.IPPoolSpec{CIDR: "10.81.0.0/16"}}
	errtest.Must(t, store.Create(t.Context(), gone))
	put(t, cfg, servicePath, "stays", serviceBody("stays", localSpec))
	w.FollowServices(true)
	await(t, w, func(world state.Cluster) bool { return len(world.Pools) == 1 })
	awaitServices(t, w, func(s state.Services) bool { found, _ := of(s, "stays"); return found != nil })
	errtest.Must(t, server.Kill())
	awaitTries(t, w, 3)
	awaitServices(t, w, func(s state.Services) bool { return s.Err != nil })
	if s := w.Services(); w.Cluster().Pools[0].Name != "gone" || !s.Known || len(s.Services) == 0 {
		t.Errorf("what was known is forgotten: %+v", s)
	}
	errtest.Must(t, server.Start())
	errtest.Must(t, store.Get(t.Context(), gone))
	errtest.Must(t, store.Delete(t.Context(), gone))
	errtest.Must(t, store.Create(t.Context(), &api.IPPool{Meta: api.Meta{Name: "new"}, Spec: api.IPPoolSpec{CIDR: "10.82.0.0/16"}}))
	errtest.Must(t, raw(t, cfg, http.MethodDelete, servicePath+"/stays", ""))
	waittest.Until(t, 40*time.Second, "only the new pool is known", func() bool {
		pools := w.Cluster().Pools
		return len(pools) == 1 && pools[0].Name == "new"
	})
	waittest.Until(t, 40*time.Second, "the deleted service is forgotten",
		func() bool { found, _ := of(w.Services(), "stays"); return found == nil })
}

// When its time is over a Watch ends at once, even if client-go waits for an API server that is away.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	w, err := NewWatch(Server{Config: &rest.Config{Host: "http://127.0.0.1:1"}}, "watched", "kube-system", slog.New(slog.DiscardHandler))
	errtest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.Run(ctx)
	}()
	awaitTries(t, w, atOnce+2)
	cancel()
	<-ended
}
