package node

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/config"
	"github.com/tortie-net/tortie/internal/kube"
	"github.com/tortie-net/tortie/internal/nodeaddr"
)

func placeAt(v4, v6 string) place {
	var p place
	if v4 != "" {
		p.v4 = nodeaddr.Choice{Addr: prefix(v4), Link: "eth0", MTU: 1500}
	}
	if v6 != "" {
		p.v6 = nodeaddr.Choice{Addr: prefix(v6), Link: "eth0", MTU: 1500}
	}
	return p
}

func TestANodeKeepsItsPlaceWhileAddressesFlap(t *testing.T) {
	one, two := placeAt("10.0.0.1/24", ""), placeAt("10.0.0.2/24", "")
	both, other6 := placeAt("10.0.0.1/24", "fd00::1/64"), placeAt("10.0.0.1/24", "fd00::2/64")
	lost := errors.New("no address")
	type look struct {
		after time.Duration // since the one before
		found place
		err   error
		want  place
		says  string // part of the error; restart: the agent ends
	}
	for name, looks := range map[string][]look{
		"nothing at first":       {{0, place{}, lost, place{}, "no address"}, {time.Second, one, nil, one, ""}},
		"a new agent waits long": {{0, one, nil, one, ""}, {time.Second, two, nil, one, "changed from 10.0.0.1 to 10.0.0.2"}, {59 * time.Second, two, nil, one, "1m0s"}, {time.Second, two, nil, two, "restart"}},
		"an old one not":         {{0, one, nil, one, ""}, {time.Hour, two, nil, one, "changed"}, {10 * time.Second, two, nil, two, "restart"}},
		"back and forth": {
			{0, one, nil, one, ""}, {time.Hour, two, nil, one, "changed"}, {9 * time.Second, one, nil, one, ""}, {time.Second, two, nil, one, "changed"},
			{9 * time.Second, two, nil, one, "changed"}, {0, one, nil, one, ""},
		},
		"gone, and back":         {{0, one, nil, one, ""}, {time.Hour, place{}, lost, one, "no address; going on as 10.0.0.1"}, {time.Hour, one, nil, one, ""}},
		"gone, then another":     {{0, one, nil, one, ""}, {time.Hour, place{}, lost, one, "going on"}, {time.Hour, two, nil, one, "changed"}, {10 * time.Second, two, nil, two, "restart"}},
		"a family comes":         {{0, one, nil, one, ""}, {time.Hour, both, nil, one, "from 10.0.0.1 to 10.0.0.1 and fd00::1"}, {10 * time.Second, both, nil, both, "restart"}},
		"a family goes":          {{0, both, nil, both, ""}, {time.Hour, one, nil, both, `only "10.0.0.1" is found`}, {time.Hour, one, nil, both, "going on"}},
		"a third one begins new": {{0, both, nil, both, ""}, {time.Hour, other6, nil, both, "changed"}, {9 * time.Second, placeAt("10.0.0.1/24", "fd00::3/64"), nil, both, "changed"}, {9 * time.Second, placeAt("10.0.0.1/24", "fd00::3/64"), nil, both, "changed"}},
	} {
		t.Run(name, func(t *testing.T) {
			var a anchor
			now := time.Unix(1e9, 0)
			for i, l := range looks {
				now = now.Add(l.after)
				got, err := a.hold(now, l.found, l.err)
				switch {
				case !got.same(l.want):
					t.Errorf("look %d: at %q, want %q", i, got, l.want)
				case l.says == "restart" && !errors.Is(err, errRestart), l.says == "" && err != nil:
					t.Errorf("look %d: %v", i, err)
				case l.says != "" && l.says != "restart" && (err == nil || !strings.Contains(err.Error(), l.says)):
					t.Errorf("look %d: %v, want %q", i, err, l.says)
				}
			}
		})
	}
}

// A link's MTU and the subnet's length are followed at once: they change nobody's way to this node.
func TestAPlaceIsFollowed(t *testing.T) {
	var a anchor
	p := placeAt("10.0.0.1/24", "")
	if _, err := a.hold(time.Unix(1, 0), p, nil); err != nil {
		t.Fatal(err)
	}
	p.v4.MTU, p.v4.Addr = 9000, prefix("10.0.0.1/20")
	if got, err := a.hold(time.Unix(2, 0), p, nil); err != nil || got.v4.MTU != 9000 || got.v4.Addr.Bits() != 20 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAnAddressOfAnotherNodeIsRefused(t *testing.T) {
	self := Self{Name: "node1", Addr: prefix("10.0.0.2/24")} // node2's
	s, _ := BuildSnapshot(self, cluster(nil))
	agent := func(stored string, shared bool) *Agent {
		return &Agent{
			Deps: Deps{Config: config.Node{Addresses: config.Addresses{Shared: shared}}},
			node: &api.Node{Meta: api.Meta{Name: "node1", Annotations: map[string]string{api.AnnotationIPv4Address: stored}}},
		}
	}
	said, refusal := agent("10.0.0.1/24", false).checkDuplicate(&s)
	if said != nil || refusal == nil || !strings.Contains(refusal.Error(), "10.0.0.2 of node node1 is also that of node node2") || !strings.Contains(refusal.Error(), "DISABLE_NODE_IP_CHECK") {
		t.Errorf("said %v, refused for %v", said, refusal)
	}
	if said, refusal := agent("10.0.0.2/24", false).checkDuplicate(&s); said == nil || refusal != nil {
		t.Errorf("announced before: said %v, refused for %v", said, refusal)
	}
	if said, refusal := agent("10.0.0.1/24", true).checkDuplicate(&s); said != nil || refusal != nil {
		t.Errorf("not to be checked: said %v, refused for %v", said, refusal)
	}
	if paths := s.known(); len(paths) != 0 {
		t.Errorf("ways to ourselves: %v", paths)
	}
}

func TestSettingsThatCannotBeUsedLeaveTheLastOnes(t *testing.T) {
	mtu := func(n int) api.FelixConfigurationSpec { return api.FelixConfigurationSpec{IPIPMTU: &n} }
	good := kube.World{
		BGP: api.BGPConfigurationSpec{NodeMeshMaxRestartTime: "90s"}, Felix: mtu(1400),
		MeshPassword: kube.Password{Set: true, Text: "first"},
	}
	in, problems := settings{}.next(good, true)
	want := settings{password: passwordSetting{text: "first"}, restart: 90 * time.Second, tunnelMTU: 1400}
	if in != want || len(problems) > 0 {
		t.Fatalf("%+v, %v", in, problems)
	}
	bad := kube.World{
		BGP: api.BGPConfigurationSpec{NodeMeshMaxRestartTime: "soon"}, Felix: mtu(3),
		MeshPassword: kube.Password{Set: true, Err: errors.New("Secret bgp has no key password")},
	}
	if out, problems := in.next(bad, false); out != in || len(problems) != 3 {
		t.Errorf("%+v, %v", out, problems)
	}
	out, problems := settings{}.next(bad, true)
	if !out.password.unknown || len(problems) != 3 {
		t.Errorf("at first: %+v, %v", out, problems)
	}
	text := strings.Join(texts(problems), "\n")
	for _, part := range []string{"BGPConfiguration default: spec.nodeMeshPassword: Secret bgp has no key password: until it is known", `"soon"`, "spec.ipipMTU 3"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in\n%s", part, text)
		}
	}
	s := snapshot(t, nil)
	s.settings = out
	if peers := sessions(s); len(peers) > 0 {
		t.Errorf("sessions without the password: %v", peers)
	}
	if out, problems := out.next(kube.World{}, false); out != (settings{}) || len(problems) > 0 {
		t.Errorf("nothing is set any more: %+v, %v", out, problems)
	}
}

func TestMeshSettingsReachEverySession(t *testing.T) {
	s := snapshot(t, func(w *kube.World) {
		w.BGP.ListenPort, w.OwnBGP.ListenPort = 1790, 1791
		w.Ports = map[string]uint16{"far": 1792}
		w.Nodes = append(w.Nodes, api.Node{Meta: api.Meta{Name: "rr", Annotations: map[string]string{
			api.AnnotationIPv4Address: "10.0.0.9/24", api.AnnotationReflector: "1.0.0.1",
		}}})
	})
	s.settings = settings{password: passwordSetting{text: "secret"}, restart: 90 * time.Second}
	s.Self.MaxPrefixes = 7
	peers := sessions(s)
	if len(peers) != 2 {
		t.Errorf("peers %v: want node2 and far, and no route reflector", peers)
	}
	for _, p := range peers {
		port := map[netip.Addr]uint16{addr("10.0.0.2"): 1790, addr("10.9.0.9"): 1792}[p.Addr]
		if p.Password != "secret" || p.RestartTime != 90*time.Second || p.MaxPrefixes != 7 || p.Port != port {
			t.Errorf("peer %+v, port %d, restart %s", p, p.Port, p.RestartTime)
		}
	}
	if local, err := s.Local(); err != nil || local.Port != 1791 {
		t.Errorf("local %+v, %v: want this node's own port", local, err)
	}
	s.Self.Reflector = true
	if peers := sessions(s); len(peers) > 0 {
		t.Errorf("a route reflector is in the mesh: %v", peers)
	}
}
