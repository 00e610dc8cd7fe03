package desired

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

func TestSettingsThatCannotBeUsedLeaveTheLastOnes(t *testing.T) {
	mtu := func(n int) api.FelixConfigurationSpec { return api.FelixConfigurationSpec{IPIPMTU: &n} }
	good := state.Cluster{
		BGP: api.BGPConfigurationSpec{NodeMeshMaxRestartTime: "90s"}, Felix: mtu(1400),
		MeshPassword: state.Password{Set: true, Text: "first"}, MeshBFD: "3x300ms keyed-md5 1",
	}
	in, problems := settings{}.next(good, true)
	want := settings{password: passwordSetting{text: "first"}, restart: 90 * time.Second, tunnelMTU: 1400}
	want.bfd = bfd.Config{Interval: 300 * time.Millisecond, Multiplier: 3, Auth: bfd.Auth{Type: bfd.KeyedMD5, KeyID: 1, Key: "first"}}
	if in != want || len(problems) > 0 {
		t.Fatalf("%+v, %v", in, problems)
	}
	bad := state.Cluster{
		BGP: api.BGPConfigurationSpec{NodeMeshMaxRestartTime: "soon"}, Felix: mtu(3),
		MeshPassword: state.Password{Set: true, Err: errors.New("Secret bgp has no key password")}, MeshBFD: "often",
	}
	if out, problems := in.next(bad, false); out != in || len(problems) != 4 {
		t.Errorf("%+v, %v", out, problems)
	}
	out, problems := settings{}.next(bad, true)
	if !out.password.unknown || len(problems) != 3 {
		t.Errorf("at first: %+v, %v", out, problems)
	}
	text := strings.Join(texts(problems), "\n")
	difftest.Contains(t, text, "BGPConfiguration default: spec.nodeMeshPassword: Secret bgp has no key password: without it",
		`"soon"`, "spec.ipipMTU 3")
	s := snapshot(t, nil)
	s.settings = out
	if peers := sessions(s); len(peers) > 0 {
		t.Errorf("sessions without the password: %v", peers)
	}
	if out, problems := out.next(state.Cluster{}, false); out != (settings{}) || len(problems) > 0 {
		t.Errorf("nothing is set any more: %+v, %v", out, problems)
	}
}

func TestMeshSettingsReachEverySession(t *testing.T) {
	s := snapshot(t, func(w *state.Cluster) {
		w.BGP.ListenPort, w.OwnBGP.ListenPort = 1790, 1791
		w.Ports = map[string]uint16{"far": 1792}
		w.Nodes = append(w.Nodes, api.Node{Meta: api.Meta{Name: "rr", Annotations: map[string]string{
			api.AnnotationIPv4Address: "10.0.0.9/24", api.AnnotationReflector: "1.0.0.1",
		}}})
	})
	s.settings = settings{password: passwordSetting{text: "secret"}, restart: 90 * time.Second,
		bfd: bfd.Config{Interval: time.Second, Multiplier: 3}}
	s.Self.MaxPrefixes = 7
	peers := sessions(s)
	if len(peers) != 2 {
		t.Errorf("peers %v: want node2 and far, and no route reflector", peers)
	}
	for _, p := range peers {
		port := map[netip.Addr]uint16{addr("10.0.0.2"): 1790, addr("10.9.0.9"): 1792}[p.Addr]
		if p.Password != "secret" || p.RestartTime != 90*time.Second || p.MaxPrefixes != 7 || p.BFD.Interval != time.Second || p.Port != port {
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
