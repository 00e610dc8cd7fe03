package desired

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/services"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// A mistake in the object leaves the former announcements in force.
func TestServiceSettings(t *testing.T) {
	first, problems := serviceConfig(services.Config{}, servedBy("10.96.0.0/12", "nonsense"), true)
	if len(first.ClusterIPs) != 1 || len(problems) != 1 ||
		!errtest.Names(problems[0], `BGPConfiguration default spec.serviceClusterIPs "nonsense"`) {
		t.Errorf("%+v, %v", first, problems)
	}
	next, problems := serviceConfig(first, servedBy("10.112.0.0/122"), false)
	if !next.Equal(first) || len(problems) != 1 || !strings.Contains(problems[0].Error(), "what was announced before stays so") {
		t.Errorf("%+v, %v", next, problems)
	}
	if next, problems = serviceConfig(first, servedBy(), false); next.On() || len(problems) > 0 {
		t.Errorf("%+v, %v", next, problems)
	}
}

func TestServiceView(t *testing.T) {
	c, _ := services.Parse(servedBy("10.96.0.0/12"))
	s := &Snapshot{served: c}
	known := state.Services{
		Known: true,
		Services: []api.Service{{Meta: api.Meta{Namespace: "a", Name: "b"},
			Spec: api.ServiceSpec{Type: api.ServiceNodePort, ClusterIP: "10.96.0.9", ExternalTrafficPolicy: api.TrafficLocal}}},
		Endpoints: []services.Endpoints{{Namespace: "a", Service: "b", Here: true, Anywhere: true}},
	}
	v, now := ServiceView{Remembered: rangesOf("10.96.0.8/32")}, time.Now()
	is := func(what, want string) {
		t.Helper()
		if got := strings.Trim(fmt.Sprint(v.announced), "[]"); got != want {
			t.Errorf("%s: %s; want %s", what, got, want)
		}
	}
	v.update(now, s, state.Services{Err: errors.New("away")}, 1)
	is("services are not known: what an earlier agent announced", "10.96.0.0/12 10.96.0.8/32")
	if len(v.problems) != 1 {
		t.Errorf("problems %v", v.problems)
	}
	v.update(now, s, known, 2)
	is("known", "10.96.0.0/12 10.96.0.9/32")
	known.Err = errors.New("away")
	v.update(now, s, known, 3)
	is("the API server went away", "10.96.0.0/12 10.96.0.9/32")
	if len(v.problems) > 0 {
		t.Errorf("problems %v", v.problems)
	}
	s.Self.Labels = map[string]string{api.LabelExcludeNode: "true"}
	v.update(now, s, known, 3)
	is("excluded", "")
	s.Self.Labels = map[string]string{api.LabelExcludeNode: "false"}
	v.update(now, s, state.Services{}, 4)
	is("forgotten", "10.96.0.0/12")
}

// An API server that comes back with an empty datastore takes nothing with it at once.
func TestServicesThatVanish(t *testing.T) {
	c, _ := services.Parse(servedBy("10.96.0.0/12"))
	s := &Snapshot{served: c}
	full := state.Services{Known: true}
	for i := range 2 * muchLost {
		name := fmt.Sprint("s", i)
		full.Services = append(full.Services, api.Service{Meta: api.Meta{Namespace: "a", Name: name},
			Spec: api.ServiceSpec{Type: api.ServiceNodePort, ClusterIP: fmt.Sprintf("10.96.0.%d", i), ExternalTrafficPolicy: api.TrafficLocal}})
		full.Endpoints = append(full.Endpoints, services.Endpoints{Namespace: "a", Service: name, Here: true, Anywhere: true})
	}
	few := full
	few.Endpoints = full.Endpoints[:1]
	begin := time.Now()
	for name, lost := range map[string]state.Services{"all": {Known: true}, "most endpoints": few} {
		var v ServiceView
		look := func(after time.Duration, found state.Services, want int, doubts bool) {
			t.Helper()
			if v.update(begin.Add(after), s, found, 1); len(v.announced) != want || (len(v.problems) > 0) != doubts || doubts != v.guard.on() {
				t.Errorf("%s, after %s: %d announced, problems %v", name, after, len(v.announced), v.problems)
			}
		}
		all := 1 + len(full.Services)
		look(0, full, all, false)
		look(time.Second, lost, all, true)
		look(2*time.Second, full, all, false)
		look(3*time.Second, lost, all, true)
		look(3*time.Second+shrinkTime, lost, 1+len(lost.Endpoints), false)
		look(4*time.Second+shrinkTime, lost, 1+len(lost.Endpoints), false)
	}
	// The loss of a few is believed, and so is a cluster whose services are no longer watched.
	var v ServiceView
	v.update(begin, s, full, 1)
	less := full
	less.Services = full.Services[:muchLost+1]
	if v.update(begin, s, less, 2); len(v.announced) != 1+len(less.Services) {
		t.Errorf("%d announced", len(v.announced))
	}
	if v.update(begin, &Snapshot{}, state.Services{}, 3); len(v.announced) > 0 || len(v.problems) > 0 {
		t.Errorf("%v announced, problems %v", v.announced, v.problems)
	}
}

// Services are announced in the families that the node has addresses in, and not from a pool that keeps out of BGP.
func TestServicesAreOriginated(t *testing.T) {
	s := Snapshot{Self: Self{Addr: netip.MustParsePrefix("10.0.0.5/24")},
		Services: rangesOf("10.96.0.0/12", "198.51.100.7/32", "203.0.113.1/32", "fd00::/108")}
	s.Pools = []Pool{{Pool: ipam.Pool{CIDR: prefix("198.51.100.0/24")}, NoExport: true}, {Pool: ipam.Pool{CIDR: prefix("203.0.113.0/24")}}}
	var got []string
	for _, p := range s.Originated() {
		got = append(got, p.Prefix.String())
	}
	if want := []string{"10.96.0.0/12", "203.0.113.1/32"}; !slices.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}
