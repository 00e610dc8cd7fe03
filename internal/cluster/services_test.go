package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/services"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

const (
	servicePath = "/api/v1/namespaces/default/services"
	slicePath   = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
)

func serviceBody(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"labels":{"big":"label"}},"spec":%s}`, name, spec)
}

func sliceBody(name, service, endpoints string) string {
	return fmt.Sprintf(
		`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":%q,"labels":{"kubernetes.io/service-name":%q}},
		"addressType":"IPv4","ports":[{"name":"http","port":80}],"endpoints":%s}`, name, service, endpoints)
}

const localSpec = `{"type":"LoadBalancer","externalTrafficPolicy":"Local","selector":{"app":"x"},"ports":[{"port":80}]}`

// awaitServices waits for wake-ups until services are as wanted.
func awaitServices(t *testing.T, w *Watch, wanted func(state.Services) bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for !wanted(w.Services()) {
		select {
		case <-w.Changed():
		case <-limit:
			t.Fatalf("services never became as wanted: %+v", w.Services())
		}
	}
}

// of returns a service and its endpoints.
func of(s state.Services, name string) (found *api.Service, e services.Endpoints) {
	for i := range s.Services {
		if s.Services[i].Name == name {
			found = &s.Services[i]
		}
	}
	for _, one := range s.Endpoints {
		if one.Service == name {
			e = one
		}
	}
	return found, e
}

func TestServicesAreFollowedWhileTheyAreWanted(t *testing.T) {
	proxy := labtest.NewProxy(t)
	through, err := Connect(proxy.Kubeconfig(), "test")
	errtest.Must(t, err)
	cfg := labtest.RESTConfig(t)
	put(t, cfg, servicePath, "followed", serviceBody("followed", localSpec))
	put(t, cfg, servicePath, "headless", serviceBody("headless", `{"clusterIP":"None","selector":{"app":"x"},"ports":[{"port":80}]}`))
	put(t, cfg, slicePath, "followed-1",
		sliceBody("followed-1", "followed", `[{"addresses":["10.0.0.9"],"nodeName":"watched","conditions":{"ready":false}}]`))

	w := watchAt(t, through)
	asked := func() int {
		r := proxy.Requests()
		return r["list services"] + r["list endpointslices"]
	}
	proves(t, w)                 // the other watches are open
	w.AwaitServices(t.Context()) // nobody wants them: at once
	if n := asked(); n != 0 || w.Services().Known {
		t.Fatalf("%d requests for what nobody wants: %v", n, proxy.Requests())
	}

	before := w.Revision()
	w.FollowServices(true)
	w.FollowServices(true)
	w.AwaitServices(t.Context())
	awaitServices(t, w, func(s state.Services) bool { return s.Known })
	s, e := of(w.Services(), "followed")
	if s == nil || s.Spec.ExternalTrafficPolicy != api.TrafficLocal || s.Spec.ClusterIP == "" || len(s.Labels) > 0 || e.Here || e.Anywhere {
		t.Errorf("%+v, %+v", s, e)
	}
	if s, _ := of(w.Services(), "headless"); s != nil {
		t.Errorf("a service without an address is kept: %+v", s)
	}
	// Heartbeats aside, each of them is asked for once, or listed and then watched.
	if n := asked(); n < 2 || n > 4 {
		t.Errorf("%d requests to follow two kinds: %v", n, proxy.Requests())
	}

	errtest.Must(t, raw(t, cfg, http.MethodPatch, slicePath+"/followed-1", `{"endpoints":[{"addresses":["10.0.0.9"],"nodeName":"watched"}]}`))
	awaitServices(t, w, func(s state.Services) bool { _, e := of(s, "followed"); return e.Here && e.Anywhere })
	revision := w.ServicesRevision()
	// What is none of our business wakes nobody.
	errtest.Must(t, raw(t, cfg, http.MethodPatch, slicePath+"/followed-1", `{"endpoints":[{"addresses":["10.0.0.8"],"nodeName":"watched"}]}`))
	errtest.Must(t, raw(t, cfg, http.MethodPatch, servicePath+"/followed", `{"metadata":{"labels":{"another":"label"}}}`))
	// What comes after it on both watches does.
	put(t, cfg, servicePath, "later", serviceBody("later", localSpec))
	put(t, cfg, slicePath, "later-1", sliceBody("later-1", "later", `[{"addresses":["10.0.0.9"],"nodeName":"watched"}]`))
	awaitServices(t, w, func(s state.Services) bool { later, e := of(s, "later"); return later != nil && e.Here })
	if now := w.ServicesRevision(); now > revision+2 || w.Revision() != before {
		t.Errorf("revision %d, then %d after two changes; of the cluster %d, then %d", revision, now, before, w.Revision())
	}
	errtest.Must(t, raw(t, cfg, http.MethodDelete, slicePath+"/followed-1", ""))
	awaitServices(t, w, func(s state.Services) bool { _, e := of(s, "followed"); return !e.Here })

	w.FollowServices(false)
	awaitServices(t, w, func(s state.Services) bool { return !s.Known && len(s.Services) == 0 })
	proxy.Reset()
	put(t, cfg, slicePath, "followed-2", sliceBody("followed-2", "followed", `[{"addresses":["10.0.0.9"],"nodeName":"watched"}]`))
	proves(t, w)
	if n := asked(); n != 0 || w.Services().Known {
		t.Errorf("%d requests after the end", n)
	}
	w.FollowServices(true)
	awaitServices(t, w, func(s state.Services) bool { _, e := of(s, "followed"); return e.Here })
}

// An agent without the right to read services reports it, waits for nothing, and everything else works. The chart's
// role has the right.
func TestRightsToServices(t *testing.T) {
	w := watchAt(t, labtest.As(t, "tortie-node"))
	w.FollowServices(true)
	w.AwaitServices(t.Context())
	awaitServices(t, w, func(s state.Services) bool { return s.Known && s.Err == nil })

	w = watchAt(t, refusing(t, "/services"))
	w.FollowServices(true)
	w.AwaitServices(t.Context())
	awaitServices(t, w, func(s state.Services) bool { return !s.Known && apierrors.IsForbidden(s.Err) })
	proves(t, w) // services that cannot be read do not stand in the way
}

// refusing reaches the API server, but for paths with an ending.
func refusing(t *testing.T, ending string) *rest.Config {
	t.Helper()
	cfg := labtest.RESTConfig(t)
	f, wired := newFaulty(t, cfg)
	through := f.server.Config.Handler
	f.server.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, ending) {
			through.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusForbidden)
		fmt.Fprint(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"not you"}`)
	})
	return wired
}

// What 5,000 services and their slices of 20 endpoints each take. The objects are made as they come from the API
// server.
func BenchmarkServicesMemory(b *testing.B) {
	w := &Watch{self: "n1"}
	for b.Loop() {
		before := heap()
		keptServices := newObjectStore(sameService, func(*api.Service) {})
		keptSlices := newObjectStore(sameEndpoints, func(*endpointSlice) {})
		for i := range 5000 {
			name := fmt.Sprintf("service-%04d", i)
			var s object[api.Service]
			decode(b, serviceBody(name, fmt.Sprintf(`{"type":"LoadBalancer","externalTrafficPolicy":"Local","clusterIP":"10.96.%d.%d",`+
				`"clusterIPs":["10.96.%d.%d"],"selector":{"app":"x"},"ports":[{"port":80}]}`, i/250, i%250, i/250, i%250)), &s)
			trimService(&s.value)
			_ = keptServices.Add(&s)
			var e object[endpointSlice]
			endpoint := `{"addresses":["10.0.0.9"],"nodeName":"n2","targetRef":{"kind":"Pod","name":"pod"},` +
				`"conditions":{"ready":true,"serving":true}}`
			decode(b, sliceBody(name+"-x7f2k", name, "["+strings.Repeat(endpoint+",", 19)+endpoint+"]"), &e)
			w.trimEndpoints(&e.value)
			_ = keptSlices.Add(&e)
		}
		b.ReportMetric(float64(heap()-before)/5000, "B/service")
		runtime.KeepAlive(keptServices)
		runtime.KeepAlive(keptSlices)
	}
}

func decode(b *testing.B, text string, into any) {
	errtest.Must(b, json.Unmarshal([]byte(text), into))
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
