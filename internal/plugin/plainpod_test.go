package plugin_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/plugin"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// tellPlain writes facts that name pods as plain.
func (w *world) tellPlain(t testing.TB, pods ...*sandbox) {
	t.Helper()
	w.tellFacts(t, func(f *facts.Facts) {
		for _, s := range pods {
			f.PlainPods = append(f.PlainPods, s.uid)
		}
	})
}

// plainWorld returns a world with the pod web, which the agent calls plain, on a node that has a block.
func plainWorld(t *testing.T) (*world, *sandbox) {
	t.Helper()
	w := newWorld(t)
	w.newPod(t, "first").add(t).ok(t)
	s := w.newPod(t, "web")
	w.tellPlain(t, s)
	return w, s
}

const getPod = "calico GET pods"

// The agent calls a pod plain by the annotations that ADD reads.
func TestConnectionAnnotations(t *testing.T) {
	t.Parallel()
	var keys []string
	for _, a := range plugin.Annotations() {
		keys = append(keys, a.Key)
		if api.PlainPod(map[string]string{a.Key: "x"}) {
			t.Errorf("a pod with %s is plain", a.Key)
		}
	}
	difftest.Want(t, "annotations that ADD reads", keys, api.ConnectionAnnotations)
	if api.PlainPod(map[string]string{api.AnnotationMirrorPod: ""}) {
		t.Error("a static pod is plain")
	}
	if !api.PlainPod(map[string]string{api.AnnotationPodIP: "10.0.0.5/32", api.AnnotationContainerID: "x",
		api.AnnotationIPAddrs: "", "other": "x"}) {
		t.Error("a pod with what ADD writes is not plain")
	}
}

// ADD reads a pod unless it is plain by the agent's facts.
func TestPodsThatAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newPod(t, "first").add(t).ok(t)
	for name, tt := range map[string]struct {
		tell func(f *facts.Facts, s *sandbox)
		args func(string) string
	}{
		"another pod is plain": {tell: func(f *facts.Facts, s *sandbox) { f.PlainPods = []string{s.uid + "0", "0" + s.uid} }},
		"old facts":            {tell: func(f *facts.Facts, _ *sandbox) { f.Written = f.Written.Add(-time.Minute) }},
		"no uid": {args: func(args string) string {
			before, _, _ := strings.Cut(args, ";K8S_POD_UID=")
			return before
		}},
		// An earlier sandbox may hold it, and its ID is on the pod.
		"an address": {args: func(args string) string { return args + ";IP=" + w.fixed("9.9") }},
	} {
		s := w.newPod(t, strings.ReplaceAll(name, " ", "-"))
		w.tellFacts(t, func(f *facts.Facts) {
			f.PlainPods = []string{s.uid}
			if tt.tell != nil {
				tt.tell(f, s)
			}
		})
		c := s.call(t, "ADD")
		if tt.args != nil {
			c.args = tt.args(c.args)
		}
		w.proxy.take()
		w.host.call(t, c).ok(t)
		if asked := w.proxy.take(); !slices.Contains(asked, getPod) {
			t.Errorf("%s: the pod was not read: %v", name, asked)
		}
	}
}

// A controller annotates a pod after the agent has seen it: ADD follows the annotations, and nothing is left of the
// first try.
func TestPodIsAnnotatedLate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ key, value string }{
		"address": {api.AnnotationIPAddrs, ""},
		"MAC":     {api.AnnotationHwAddr, "02:00:5e:10:00:01"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first, s := w.newPod(t, "first"), w.newPod(t, "web")
			held := map[netip.Addr]*sandbox{address(t, first.add(t).result(t)): first}
			w.tellPlain(t, s)
			want := w.fixed("9.9")
			if tt.value == "" {
				tt.value = fmt.Sprintf(`["%s"]`, want)
			}
			w.annotatePod(t, "web", tt.key, tt.value)
			w.proxy.take()
			added := s.add(t)
			a := address(t, added.result(t))
			asked := w.proxy.take()
			if n := count(asked, patchPod); n != 3 || count(asked, getPod) != 1 { // noted, cleared, noted
				t.Errorf("requests: %v", asked)
			}
			if tt.key == api.AnnotationIPAddrs && a.String() != want {
				t.Errorf("address %s, want %s", a, want)
			}
			if mac := s.ns.Link(t, "eth0").HardwareAddr.String(); tt.key == api.AnnotationHwAddr && mac != tt.value {
				t.Errorf("MAC %s, want %s", mac, tt.value)
			}
			held[a] = s
			w.wantHeld(t, held)
			s.check(t, added).ok(t)
			difftest.Contains(t, w.podAnnotations(t, "web"), "containerID="+s.container, "podIP="+a.String()+"/32 ")
			s.del(t).ok(t)
			delete(held, a)
			w.wantHeld(t, held)
		})
	}
}

// Without the late annotation the pod would be refused: ADD refuses nothing before it has read the pod.
func TestPodIsServedByALateAnnotation(t *testing.T) {
	t.Parallel()
	w, s := plainWorld(t)
	c := s.call(t, "ADD")
	c.stdin = strings.Replace(c.stdin, `"type":"calico-ipam"`, `"type":"calico-ipam","assign_ipv4":"false"`, 1)
	nothing := w.unchanged(t)
	w.wantFailure(t, w.host.call(t, c), types.ErrInvalidNetworkConfig, "no address is wanted")
	nothing()
	w.annotatePod(t, "web", api.AnnotationIPFamilies, `["IPv4"]`)
	w.host.call(t, c).ok(t)
}

// A late annotation may ask for something impossible: ADD reports it like an early one, and leaves nothing behind.
func TestPodIsAnnotatedLateAndWrongly(t *testing.T) {
	t.Parallel()
	w, s := plainWorld(t)
	nothing := w.unchanged(t)
	w.annotatePod(t, "web", api.AnnotationIPAddrs, `["192.0.2.1"]`)
	w.wantFailure(t, s.add(t), codeNoPool, "192.0.2.1", "IPPool")
	nothing()
}

// The API server fails after a late annotation was seen: if the first try cannot be undone, there is no second, and DEL
// cleans up.
func TestUndoFails(t *testing.T) {
	t.Parallel()
	w, s := plainWorld(t)
	nothing := w.unchanged(t)
	w.annotatePod(t, "web", api.AnnotationHwAddr, "02:00:5e:10:00:01")
	blocks := 0
	w.proxy.setRule(func(request string, rw http.ResponseWriter, r *http.Request, next http.Handler) {
		if request == "calico PUT ipamblocks" {
			if blocks++; blocks > 1 {
				panic(http.ErrAbortHandler)
			}
		}
		next.ServeHTTP(rw, r)
	})
	w.proxy.take()
	w.wantFailure(t, s.add(t), types.ErrInternal, "annotations that were not read", "left for DEL")
	if asked := w.proxy.take(); count(asked, getPod) != 0 {
		t.Errorf("it was done again: %v", asked)
	}
	w.proxy.setRule(nil)
	s.del(t).ok(t)
	nothing()
}

// A pod is deleted after the agent has seen it, and perhaps created again under its name: nothing is noted on the other
// one, and ADD leaves nothing behind.
func TestPodIsAnother(t *testing.T) {
	t.Parallel()
	w, s := plainWorld(t)
	w.api.delete(t, "Pod", w.name, "web")
	nothing := w.unchanged(t)
	w.wantFailure(t, s.add(t), types.ErrUnknownContainer, "pods/web", "deleted")
	nothing()

	w.createPod(t, "web", "")
	next := w.sandbox(t, "web")
	nothing = w.unchanged(t)
	w.proxy.take()
	w.wantFailure(t, s.add(t), types.ErrTryAgainLater, s.uid, next.uid, w.name+"/web", "K8S_POD_UID")
	if asked := w.proxy.take(); !slices.Contains(asked, patchPod) {
		t.Errorf("the pod was read first: %v", asked)
	}
	if noted := w.podAnnotations(t, "web"); noted != "" {
		t.Errorf("noted on the new pod: %s", noted)
	}
	nothing()
	w.tellPlain(t, s, next)
	next.wantAnnotations(t, address(t, next.add(t).result(t)).String(), next.container)
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}
