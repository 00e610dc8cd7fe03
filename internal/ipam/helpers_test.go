package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// clock is when everything happens in tests without a real datastore.
var clock = time.Date(2026, 11, 20, 16, 3, 57, 820903754, time.UTC)

func cidr(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func cidrs(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, cidr(t))
	}
	return out
}

func owner(handle string) Owner {
	return Owner{Handle: handle, Attrs: map[string]string{"pod": "pod-of-" + handle}}
}

// poolObject returns an IPPool with blocks of four addresses.
func poolObject(name, cidr string, change ...func(*api.IPPool)) *api.IPPool {
	p := &api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{CIDR: cidr, BlockSize: 30}}
	if strings.Contains(cidr, ":") {
		p.Spec.BlockSize = 126
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func pool(t testing.TB, name, cidr string, change ...func(*api.IPPool)) Pool {
	t.Helper()
	p := parsed(poolObject(name, cidr, change...))
	errtest.Must(t, p.Err)
	return p
}

// parsed returns the only pool of a cluster.
func parsed(obj *api.IPPool) Pool { return ParsePools([]api.IPPool{*obj})[0] }

// claimed returns a host's affinity as it is stored.
func claimed(host, text string, state api.AffinityState) *api.BlockAffinity {
	a := newAffinity(host, cidr(text))
	a.Spec.State = state
	a.UID, a.ResourceVersion = "uid-"+a.Name, "1"
	return a
}

// stored returns a block as it is stored: owned by a host unless that is empty, its first addresses held by the
// handles, one each; "-" frees one again.
func stored(text, host string, handles ...string) *Block {
	b := NewBlock(cidr(text), host, clock)
	if host == "" {
		b.obj.Spec.Affinity, b.obj.Spec.AffinityClaimTime = nil, ""
	}
	b.obj.UID, b.obj.ResourceVersion = "uid-"+b.obj.Name, "1"
	for _, h := range handles {
		b.Assign(owner(h), nil)
	}
	b.ReleaseHandle("-", Cooldown{})
	return b
}

// storedHandle returns a handle as it is stored; blocks are written "10.0.0.0/30=2".
func storedHandle(id string, blocks ...string) *api.IPAMHandle {
	h := newHandle(id)
	h.UID, h.ResourceVersion = "uid-"+h.Name, "1"
	for _, b := range blocks {
		text, count, _ := strings.Cut(b, "=")
		n := 0
		if _, err := fmt.Sscan(count, &n); err != nil {
			panic(err)
		}
		h.Spec.Block[text] = n
	}
	return h
}

// lines returns a plan's writes as text: verb, kind, and the relevant fields of the object.
func (p Plan) lines() []string {
	var out []string
	for _, w := range p.writes {
		out = append(out, map[verb]string{create: "create", update: "update", remove: "delete"}[w.verb]+" "+describe(w.obj))
	}
	return out
}

// describe writes one object for people.
func describe(obj api.Resource) string {
	switch o := obj.(type) {
	case *api.BlockAffinity:
		return fmt.Sprintf("affinity %s %s %s", o.Spec.Node, o.Spec.CIDR, o.Spec.State)
	case *api.IPAMHandle:
		var held []string
		for _, text := range slices.Sorted(maps.Keys(o.Spec.Block)) {
			held = append(held, fmt.Sprintf("%s=%d", text, o.Spec.Block[text]))
		}
		return strings.TrimSpace(fmt.Sprintf("handle %s %s", o.Spec.HandleID, strings.Join(held, " ")))
	case *api.IPAMBlock:
		return describeBlock(o)
	}
	return fmt.Sprintf("%T", obj)
}

func describeBlock(o *api.IPAMBlock) string {
	of := "orphan"
	if o.Spec.Affinity != nil {
		of = *o.Spec.Affinity
	}
	var held []string
	for ordinal, at := range o.Spec.Allocations {
		if at == nil {
			held = append(held, ".")
			continue
		}
		handle := "nobody"
		if h := o.Spec.Attributes[*at].HandleID; h != nil {
			handle = *h
		}
		held = append(held, fmt.Sprintf("%d:%s", ordinal, handle))
	}
	return fmt.Sprintf("block %s %s [%s]", o.Spec.CIDR, of, strings.Join(held, " "))
}

// got returns a plan's assignments as text.
func (p Plan) got() string {
	var out []string
	for _, a := range p.Assignments {
		out = append(out, fmt.Sprintf("%s from %s", a.Address, a.Block))
	}
	return strings.Join(out, ", ")
}

func attribute(handle string) api.AllocationAttribute {
	return api.AllocationAttribute{HandleID: &handle, Secondary: map[string]string{"pod": "pod-of-" + handle}}
}

func ptr[T any](v T) *T { return &v }
