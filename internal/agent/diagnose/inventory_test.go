package diagnose

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// TestPoolsAndDefinitions: with the agent's rights a full pool is found among others, and each needed or wanted kind is
// one that the chart installs.
func TestPoolsAndDefinitions(t *testing.T) {
	store := labstore.Store(t)
	taken := 0
	block := func(cidr string, allocations []*int, unallocated []int) *api.IPAMBlock {
		b := &api.IPAMBlock{Meta: api.Meta{Name: strings.NewReplacer(".", "-", "/", "-").Replace(cidr)}}
		b.Spec.CIDR, b.Spec.Allocations, b.Spec.Unallocated = cidr, allocations, unallocated
		b.Spec.Attributes = []api.AllocationAttribute{{}}
		return b
	}
	for _, obj := range []api.Resource{
		&api.IPPool{Meta: api.Meta{Name: "full"}, Spec: api.IPPoolSpec{CIDR: "10.98.0.0/30", BlockSize: 30}},
		&api.IPPool{Meta: api.Meta{Name: "roomy"}, Spec: api.IPPoolSpec{CIDR: "10.98.1.0/30", BlockSize: 30}},
		block("10.98.0.0/30", []*int{&taken, &taken, &taken, &taken}, []int{}),
		block("10.98.1.0/30", []*int{&taken, &taken, &taken, nil}, []int{3}),
	} {
		errtest.Must(t, store.Create(t.Context(), obj))
	}
	pool := func(name, cidr string) nodestatus.Pool {
		return nodestatus.Pool{Name: name, CIDR: cidr, BlockSize: 30, SelectsNode: true}
	}
	o := &Observations{Agent: &nodestatus.Report{Pools: []nodestatus.Pool{pool("full", "10.98.0.0/30")}}}
	look := func() []Finding {
		t.Helper()
		o.Cluster = lookAtCluster(t.Context(), asAgent(t), o.Agent)
		errtest.Must(t, o.Cluster.Err)
		return append(o.pools(), o.definitions()...)
	}
	findings := look()
	expect(t, findings, "pools", "IPv4", Problem, "no free address in pool full")
	expect(t, findings, "definitions", "", OK, "has all kinds")
	o.Agent.Pools = append(o.Agent.Pools, pool("roomy", "10.98.1.0/30"))
	expect(t, look(), "pools", "IPv4", Warning, "no free address in pool full; others have some")
	o.Agent.Pools = o.Agent.Pools[1:]
	expect(t, look(), "pools", "", OK, "none that selects this node is full")
	idle := func(reason, why, do string) {
		t.Helper()
		p := &o.Agent.Pools[0]
		p.Disabled, p.Reason, p.Why = true, reason, why
		findings := look()
		expect(t, findings, "pools", "IPv4", Problem, "no pool that selects this node assigns anything: roomy: "+why)
		if f := find(t, findings, "pools", "IPv4"); !strings.Contains(f.Do, do) {
			t.Errorf("%s: %s", reason, f.Do)
		}
	}
	pools := labtest.InGroupText(t, "ippools.crd.projectcalico.org")
	idle(api.PoolDisabled, "spec.disabled is true", "kubectl patch "+pools+` roomy --type merge -p '{"spec":{"disabled":false}}'`)
	idle(api.PoolTerminating, "it is being deleted", "kubectl get "+pools+" roomy -o yaml")
	idle(api.PoolOK, "its condition Allocatable is False: Odd by hand", "kubectl get "+pools+" roomy -o yaml")
	o.Agent.Pools[0] = pool("roomy", "10.98.1.0/30")
	wide := pool("wide", "10.98.0.0/16") // it is the agent that judges
	o.Agent.Pools = append(o.Agent.Pools, wide)
	expect(t, look(), "pools", "", OK, "none that selects this node is full")
	wide.Disabled, wide.Reason, wide.Why = true, api.PoolOverlap, "10.98.0.0/16 overlaps 10.98.1.0/30 of the older IPPool roomy"
	o.Agent.Pools[1] = wide
	expect(t, look(), "pools", "wide", Problem, "overlaps 10.98.1.0/30 of the older IPPool roomy")

	// A pool that went with its definition is the fault of that.
	wide.Reason, wide.Why = api.PoolTerminating, "it is being deleted"
	o.Agent.Pools = []nodestatus.Pool{wide}
	expect(t, look(), "pools", "IPv4", Problem, "no pool that selects this node assigns anything: wide")
	gone := *o
	gone.Cluster.Definitions = slices.DeleteFunc(slices.Clone(o.Cluster.Definitions), func(k string) bool { return k == "ippools" })
	if f := gone.pools(); len(f) > 0 {
		t.Errorf("without the definition of IPPools: %+v, want nothing beside what check definitions finds", f)
	}

	if in := labtest.Group(t); o.Cluster.Group != in {
		t.Errorf("group %q, want %q", o.Cluster.Group, in)
	}
	for _, in := range groups.All {
		for kind, level := range map[string]Level{"ippools": Problem, "ipamconfigs": Problem, "tiers": Warning} {
			less := *o
			less.Cluster.Group = in
			less.Cluster.Definitions = slices.DeleteFunc(slices.Clone(o.Cluster.Definitions), func(k string) bool { return k == kind })
			f := less.definitions()
			plural, group, _ := strings.Cut(in.Resource(kind), ".")
			expect(t, f, "definitions", "", level, "does not have "+plural+"."+group)
			file := filepath.Join(labtest.DefinitionsDir(in), group+"_"+plural+".yaml")
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
			if _, named, _ := strings.Cut(f[0].Do, " -f "); !strings.HasSuffix(file, "/"+named[:strings.Index(named, ";")]) {
				t.Errorf("%s does not name %s", f[0].Do, file)
			}
		}
	}
}

// TestSpace: a file system without room, or without inodes, is reported.
func TestSpace(t *testing.T) {
	for about, options := range map[string]string{"bytes": "size=256k", "inodes": "size=100m,nr_inodes=20"} {
		root := t.TempDir()
		dir := filepath.Join(root, "/var/lib/cni")
		errtest.Must(t, os.MkdirAll(dir, 0o755))
		errtest.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		if about == "inodes" {
			for i := range 10 {
				errtest.Must(t, os.WriteFile(filepath.Join(dir, string(rune('a'+i))), bytes.Repeat([]byte("x"), 10), 0o600))
			}
		}
		findings := (&Observations{Space: host{root: root}.space()}).space()
		if text := FullText(root); !strings.HasPrefix(text, "the file system of /var/lib/cni is full: ") {
			t.Errorf("%q", text)
		}
		if f := find(t, findings, "space", "/var/lib/cni"); f.Level != Problem || !strings.Contains(f.Seen, "is full") {
			t.Errorf("%s: %+v", about, f)
		}
	}
	if findings := (&Observations{Space: host{root: "/"}.space()}).space(); len(findings) == 0 {
		t.Error("nothing of this host")
	}
}
