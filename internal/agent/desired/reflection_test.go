package desired

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
)

// Sessions with the reflectors of kube-controllers, and what their silence means.
func TestReflectors(t *testing.T) {
	w := desiredtest.Reflecting()
	off := false
	w.BGP.NodeToNodeMeshEnabled = &off
	w.Peers = []api.BGPPeer{{Meta: api.Meta{Name: api.ReflectorsPeer},
		Spec: api.BGPPeerSpec{NodeSelector: "all()", PeerSelector: "has(" + api.LabelReflector + ")"}}}
	decide := func(self string) *Snapshot {
		s, problems := Build(Self{Name: self, Addr: netip.MustParsePrefix("10.0.0.9/24")}, w)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		new(Deciding).Decide(&s)
		return &s
	}
	s := decide("n9")
	if got := strings.Join(s.Reflectors(), " "); got != "n3" || !s.Reflected() {
		t.Errorf("a client's reflectors: %q", got)
	}
	if got := s.Sessions(); len(got) != 1 || got[addr("10.0.0.3")].Kind != KindReflector {
		t.Errorf("a client's sessions: %+v", got)
	}
	if got := strings.Join(decide("n3").Reflectors(), " "); got != "n3" {
		t.Errorf("a reflector's own: %q", got)
	}
	of, three := addr("192.168.2.9"), addr("10.0.0.3")
	for what, c := range map[string]struct {
		silent map[netip.Addr]bool
		want   bool
	}{
		"no session":       {nil, true},
		"a silent session": {map[netip.Addr]bool{three: true}, true},
		"a whole table":    {map[netip.Addr]bool{three: false}, false},
		"a stranger's":     {map[netip.Addr]bool{addr("10.0.0.2"): false}, true},
	} {
		if got := s.Unreflected(of, c.silent); got != c.want {
			t.Errorf("%s: %t", what, got)
		}
	}
	w.Nodes = w.Nodes[:2]
	if s := decide("n9"); !s.Unreflected(of, nil) {
		t.Error("the Nodes of all reflectors are deleted, and their silence has a meaning")
	}
	w.BGP.NodeToNodeMeshEnabled = nil
	if s := decide("n9"); s.Unreflected(of, nil) || s.Reflected() {
		t.Error("with a mesh reflectors' silence has no meaning")
	}
}

// With the annotation for Calico's labels a node cannot give itself a label that its kubelet may not write.
func TestRestrictedLabels(t *testing.T) {
	n := api.Node{Meta: api.Meta{Annotations: map[string]string{
		api.AnnotationLabels: `{"a":"b","` + api.LabelReflector + `":""}`}}}
	if got := labelsOf(n, func(err error) { t.Error(err) }); len(got) != 1 || got["a"] != "b" {
		t.Errorf("%v", got)
	}
}
