package ipam

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// with returns attributes of "key=value".
func with(pairs ...string) map[string]string {
	attrs := map[string]string{}
	for _, p := range pairs {
		key, value, _ := strings.Cut(p, "=")
		attrs[strings.Replace(key, "if", names.AttributeInterface, 1)] = value
	}
	return attrs
}

// noting returns a block of node-a; h holds all addresses in it, with these attributes.
func noting(noted ...map[string]string) *Block {
	b := stored("10.0.0.0/30", "node-a")
	for _, attrs := range noted {
		b.Assign(Owner{Handle: "h", Attrs: attrs}, nil)
	}
	return b
}

// A handle is a name that a runtime has chosen: the attributes in the block decide on the owner of an address.
func TestOwns(t *testing.T) {
	pod, bare := with("node=node-a", "namespace=d", "pod=web", "timestamp=1"), with("node=node-a", "timestamp=1")
	change := func(of map[string]string, pairs ...string) map[string]string {
		changed := maps.Clone(of)
		maps.Copy(changed, with(pairs...))
		return changed
	}
	for _, tt := range []struct {
		name            string
		noted, asks     map[string]string
		container, owns bool
	}{
		{"the same pod", pod, change(pod, "timestamp=2"), true, true},
		{"the same pod, after the node was renamed", pod, change(pod, "node=node-b"), true, true},
		{"another pod", pod, change(pod, "pod=db"), false, false},
		{"a pod of another namespace", pod, change(pod, "namespace=e"), false, false},
		{"a pod, asked for without a pod", pod, bare, false, false},
		{"a container of no pod", bare, change(bare, "timestamp=2"), true, true},
		{"one of another node", bare, change(bare, "node=node-b"), false, false},
		{"one of this node, asked for as a pod's", bare, pod, true, true},
		{"one of another node, asked for as a pod's", bare, change(pod, "node=node-b"), false, false},
		{"a tunnel", change(bare, "type=ipipTunnelAddress"), bare, false, false},
		{"the same tunnel", change(bare, "type=ipipTunnelAddress"), change(bare, "type=ipipTunnelAddress"), true, true},
		{"of a Calico that noted nothing", nil, bare, true, true},
		{"who asks by the handle alone", pod, nil, true, true},
		{"a Calico 2's handle of a pod, of nothing else", bare, with("pod=web", "namespace=d"), false, false},
		{"the same interface", change(bare, "if=net1"), change(bare, "if=net1"), true, true},
		{"another interface", change(bare, "if=net1"), change(bare, "if=net2"), true, false},
		{"an interface that the block does not note", bare, change(bare, "if=net2"), true, true},
		{"an interface, asked for by a plugin that has one only", change(bare, "if=net1"), bare, true, true},
	} {
		o := Owner{Handle: "h", Attrs: tt.asks}
		if got := o.sameContainer(tt.noted); got != tt.container {
			t.Errorf("%s: same container %v, want %v", tt.name, got, tt.container)
		}
		if got := o.owns(tt.noted); got != tt.owns {
			t.Errorf("%s: owns %v, want %v", tt.name, got, tt.owns)
		}
	}
}

// An assignment never returns another container's addresses under the same handle, and never adds to them.
func TestPlanAssignRefusesAnothersHandle(t *testing.T) {
	own := []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed)}
	here := with("node=node-a")
	of := func(attrs map[string]string, addresses ...string) func(*Request) {
		return func(r *Request) {
			asks(addresses...)(r)
			r.V4, r.Attrs = len(addresses) == 0, attrs
		}
	}
	elsewhere := storedHandle("h")
	elsewhere.Annotations[names.AnnotationNode] = "node-b"
	for name, c := range map[string]planCase{
		"a pod's address": {blocks: []*Block{noting(with("node=node-a", "namespace=d", "pod=web"))}, request: of(here)},
		"a pod's address, asked for by name": {blocks: []*Block{noting(with("node=node-a", "namespace=d", "pod=web"))},
			request: of(here, "10.0.0.0")},
		"another address of another's": {blocks: []*Block{noting(with("node=node-b"))}, request: of(here, "10.0.0.1")},
		"of another node":              {blocks: []*Block{noting(with("node=node-b"))}, request: of(here)},
		"about to be of another node":  {handle: elsewhere, blocks: []*Block{noting()}, request: of(here)},
	} {
		c.affine = own
		if c.handle == nil {
			c.handle = storedHandle("h", "10.0.0.0/30=1")
		}
		plan, err := PlanAssign(c.state(t), c.req())
		if !errors.Is(err, ErrTaken) {
			t.Errorf("%s: %v, %v; want %v", name, plan.got(), err, ErrTaken)
		}
	}
	c := planCase{affine: own, handle: storedHandle("h", "10.0.0.0/30=1"), blocks: []*Block{noting(with("node=node-a", "if=net1"))}}
	for ifName, want := range map[string]string{"net1": "10.0.0.0 from 10.0.0.0/30", "net2": "10.0.0.1 from 10.0.0.0/30"} {
		c.request = of(with("node=node-a", "if="+ifName))
		plan, err := PlanAssign(c.state(t), c.req())
		if err != nil || plan.got() != want {
			t.Errorf("%s: %v, %v; want %s", ifName, plan.got(), err, want)
		}
		if len(plan.writes) > 0 && plan.lines()[0] != "update handle h 10.0.0.0/30=2" {
			t.Errorf("%s: %q", ifName, plan.lines())
		}
	}
}

// A release frees the owner's addresses, and leaves the handle to other holders under it.
func TestPlanReleaseOwned(t *testing.T) {
	first, second := with("node=node-a", "if=net1"), with("node=node-a", "if=net2")
	for name, tt := range map[string]struct {
		owner  map[string]string
		block  *Block
		writes []string
	}{
		"one interface of two": {first, noting(first, second),
			[]string{"update block 10.0.0.0/30 host:node-a [. 1:h . .]", "update handle h 10.0.0.0/30=1"}},
		"the last interface": {first, noting(first), []string{"update block 10.0.0.0/30 host:node-a [. . . .]", "delete handle h 10.0.0.0/30=2"}},
		"another node's":     {with("node=node-b"), noting(first, second), nil},
		"beside another node's": {with("node=node-b"), noting(first, with("node=node-b")),
			[]string{"update block 10.0.0.0/30 host:node-a [0:h . . .]", "update handle h 10.0.0.0/30=1"}},
		"all of a pod's, without the pod": {with("node=node-a"), noting(with("node=node-a", "namespace=d", "pod=web")), nil},
	} {
		h := storedHandle("h", "10.0.0.0/30=2")
		plan, _ := PlanRelease(h, Owner{Handle: "h", Attrs: tt.owner}, []*Block{tt.block}, Cooldown{})
		difftest.Want(t, name, tt.writes, plan.lines())
		if h.Spec.Block["10.0.0.0/30"] != 2 {
			t.Errorf("%s: planning changed the handle", name)
		}
	}
}
