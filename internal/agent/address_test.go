package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
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
		"nothing at first": {{0, place{}, lost, place{}, "address"}, {time.Second, one, nil, one, ""}},
		"a new agent waits long": {{0, one, nil, one, ""}, {time.Second, two, nil, one, "10.0.0.1 10.0.0.2 1m0s"},
			{59 * time.Second, two, nil, one, "1m0s"}, {time.Second, two, nil, two, "restart"}},
		"an old one not": {{0, one, nil, one, ""}, {time.Hour, two, nil, one, "changed"}, {10 * time.Second, two, nil, two, "restart"}},
		"back and forth": {
			{0, one, nil, one, ""}, {time.Hour, two, nil, one, "changed"}, {9 * time.Second, one, nil, one, ""},
			{time.Second, two, nil, one, "changed"},
			{9 * time.Second, two, nil, one, "changed"}, {0, one, nil, one, ""},
		},
		"gone, and back": {{0, one, nil, one, ""}, {time.Hour, place{}, lost, one, "going 10.0.0.1"}, {time.Hour, one, nil, one, ""}},
		"gone, then another": {{0, one, nil, one, ""}, {time.Hour, place{}, lost, one, "going"}, {time.Hour, two, nil, one, "changed"},
			{10 * time.Second, two, nil, two, "restart"}},
		"a family comes": {{0, one, nil, one, ""}, {time.Hour, both, nil, one, "10.0.0.1 fd00::1 10s"},
			{10 * time.Second, both, nil, both, "restart"}},
		"a family goes": {{0, both, nil, both, ""}, {time.Hour, one, nil, both, `10.0.0.1 fd00::1 "10.0.0.1"`},
			{time.Hour, one, nil, both, "going"}},
		"a third one begins new": {{0, both, nil, both, ""},
			{time.Hour, other6, nil, both, "changed"}, {9 * time.Second, placeAt("10.0.0.1/24", "fd00::3/64"), nil, both, "changed"},
			{9 * time.Second, placeAt("10.0.0.1/24", "fd00::3/64"), nil, both, "changed"}},
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
				case l.says != "" && l.says != "restart" && !errtest.Names(err, l.says):
					t.Errorf("look %d: %v, want %q", i, err, l.says)
				}
			}
		})
	}
}

// A link's MTU and the subnet's length are followed at once: they do not change how other nodes reach this one.
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
	self := desired.Self{Name: "node1", Addr: prefix("10.0.0.2/24")} // node2's
	s, _ := desired.Build(self, desiredtest.World(nil))
	agent := func(stored string, shared bool) *Agent {
		return &Agent{
			Deps:      Deps{Config: config.Node{Addresses: config.Addresses{Shared: shared}}},
			nodeState: nodeState{node: &api.Node{Meta: api.Meta{Name: "node1", Annotations: map[string]string{api.AnnotationIPv4Address: stored}}}},
		}
	}
	said, refusal := agent("10.0.0.1/24", false).checkDuplicate(&s)
	if said != nil || !errtest.Names(refusal, "10.0.0.2 node1 node2 DISABLE_NODE_IP_CHECK=true") {
		t.Errorf("said %v, refused for %v", said, refusal)
	}
	if said, refusal := agent("10.0.0.2/24", false).checkDuplicate(&s); said == nil || refusal != nil {
		t.Errorf("announced before: said %v, refused for %v", said, refusal)
	}
	if said, refusal := agent("10.0.0.1/24", true).checkDuplicate(&s); said != nil || refusal != nil {
		t.Errorf("not to be checked: said %v, refused for %v", said, refusal)
	}
	if paths, _ := s.By(desired.Grounds{}).Accept(nil, nil); len(paths) != 0 {
		t.Errorf("ways to ourselves: %v", paths)
	}
}
