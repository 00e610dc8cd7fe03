package controllers

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// foreign is metadata with finalizers, of an object that is deleted or not.
func foreign(deleted bool, finalizers ...string) api.Meta {
	m := api.Meta{Name: "a", Foreign: &api.Foreign{Finalizers: finalizers}}
	if deleted {
		m.DeletionTimestamp = "2026-11-30T00:00:00Z"
	}
	return m
}

func TestFinalizersOfOthersStay(t *testing.T) {
	for _, c := range []struct {
		had    string
		wanted bool
		want   string
	}{
		{"", true, "x true"}, {"", false, " false"}, {"a,x,b", true, " false"}, {"a,x,b", false, "a,b true"}, {"a", true, "a,x true"},
		{"a,b", false, "a,b false"}, {"x", false, " true"},
	} {
		m := foreign(false, strings.FieldsFunc(c.had, func(r rune) bool { return r == ',' })...)
		if c.had == "" {
			m.Foreign = nil
		}
		list, differs := withFinalizer(&m, "x", c.wanted)
		got := fmt.Sprint(strings.Join(list, ","), " ", differs)
		if want := c.want; got != want && (differs || !strings.HasSuffix(want, " false")) {
			t.Errorf("%q, wanted %v: %q, want %q", c.had, c.wanted, got, want)
		}
		if c.had != "" && strings.Join(m.Finalizers, ",") != c.had {
			t.Errorf("%q was changed to %v", c.had, m.Finalizers)
		}
	}
}

func TestPoolIsKeptWhileItHasBlocks(t *testing.T) {
	in := func(cidr string, change ...func(*inventory.Block)) inventory.Block {
		b := inventory.Block{Meta: api.Meta{Name: cidr}, CIDR: netip.MustParsePrefix(cidr)}
		for _, f := range change {
			f(&b)
		}
		return b
	}
	used := func(b *inventory.Block) { b.Allocations = append(b.Allocations, inventory.Allocation{}) }
	cooling := func(b *inventory.Block) {
		b.Allocations = append(b.Allocations, inventory.Allocation{Released: time.Unix(1, 0)})
	}
	damaged := func(b *inventory.Block) { b.Damage = errors.New("damage") }
	nameless := func(b *inventory.Block) { b.CIDR = netip.Prefix{} }
	is, was := foreign(false), foreign(true, "other", poolFinalizer)
	for name, c := range map[string]struct {
		meta   api.Meta
		cidr   string
		reason string
		blocks []inventory.Block
		keeps  bool
		idle   int
	}{
		"in use":                  {is, "", api.PoolOK, nil, true, 0},
		"disabled":                {is, "", api.PoolDisabled, []inventory.Block{in("10.0.0.0/26", used)}, false, 0},
		"overlaps":                {foreign(false, poolFinalizer), "", api.PoolOverlap, []inventory.Block{in("10.0.0.0/26")}, false, 0},
		"deleted without":         {foreign(true, "other"), "", api.PoolTerminating, []inventory.Block{in("10.0.0.0/26")}, false, 0},
		"deleted, no block":       {was, "", api.PoolTerminating, nil, false, 0},
		"deleted, others' blocks": {was, "", api.PoolTerminating, []inventory.Block{in("10.1.0.0/26"), in("fd00::/122", used)}, false, 0},
		"deleted, idle":           {was, "", api.PoolTerminating, []inventory.Block{in("10.0.0.0/26"), in("10.0.255.192/26")}, true, 2},
		"deleted, cooling":        {was, "", api.PoolTerminating, []inventory.Block{in("10.0.0.0/26", cooling)}, true, 1},
		"deleted, used": {was, "", api.PoolTerminating,
			[]inventory.Block{in("10.0.0.0/26", cooling, used), in("10.0.1.0/26")}, true, 1},
		"deleted, damaged":             {was, "", api.PoolTerminating, []inventory.Block{in("10.0.0.0/26", damaged)}, true, 0},
		"deleted, range not known":     {was, "", api.PoolTerminating, []inventory.Block{in("10.9.0.0/26", damaged, nameless)}, true, 0},
		"deleted, larger block":        {was, "10.0.0.0/28", api.PoolTerminating, []inventory.Block{in("10.0.0.0/26", used)}, true, 0},
		"deleted, has no range at all": {was, "none", api.PoolTerminating, []inventory.Block{in("10.0.0.0/26", used)}, false, 0},
	} {
		pool := api.IPPool{Meta: c.meta, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/16"}}
		if c.cidr != "" {
			pool.Spec.CIDR = c.cidr
		}
		if keeps, idle := keepsPool(&pool, c.reason, c.blocks); keeps != c.keeps || len(idle) != c.idle {
			t.Errorf("%s: kept %v, %d idle blocks, want %v, %d", name, keeps, len(idle), c.keeps, c.idle)
		}
	}
}

func TestTierIsKeptWhilePoliciesNameIt(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	steps := func(m api.Meta, status *api.CalicoTierStatus, n int) string {
		got := ""
		for _, s := range tierSteps([]*api.CalicoTier{{Meta: m, Status: status}}, policiesOf{"a": n, "b": 1}, now) {
			got += fmt.Sprint(s.finalizers)
			if s.status != nil {
				got += s.status.Conditions[len(s.status.Conditions)-1].Message
			}
		}
		return got
	}
	waits := tierSteps([]*api.CalicoTier{{Meta: foreign(true, tierFinalizer)}}, policiesOf{"a": 2}, now)[0].status
	difftest.Want(t, "condition", []api.Condition{{
		Type: "Ready", Status: "False", Reason: "Terminating", LastTransitionTime: "2026-11-30T00:00:00Z",
		Message: "policies in the tier: 2; the tier is deleted when they are deleted or in another tier",
	}}, waits.Conditions)
	for name, c := range map[string]struct{ got, want string }{
		"new":                  {steps(foreign(false, "x"), nil, 0), "[x " + tierFinalizer + "]"},
		"kept":                 {steps(foreign(false, tierFinalizer), nil, 7), ""},
		"deleted without":      {steps(foreign(true, "x"), nil, 7), ""},
		"deleted":              {steps(foreign(true, "x", tierFinalizer), nil, 0), "[x]"},
		"deleted, told":        {steps(foreign(true, tierFinalizer), waits, 2), ""},
		"deleted, fewer":       {steps(foreign(true, tierFinalizer), waits, 1), "[]" + strings.Replace(waits.Conditions[0].Message, "2", "1", 1)},
		"deleted, told, empty": {steps(foreign(true, tierFinalizer), waits, 0), "[]"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", name, c.got, c.want)
		}
	}
}
