package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a cluster of two nodes with addresses assigned as by plugins and agents.
type world struct {
	*datastoretest.Fake
	t    *testing.T
	ipam *ipam.Client
}

// healthy is a cluster in which nothing is wrong: a pool of four blocks, of which each node has one with an address for
// its tunnel and for a pod; a second pod of b has an address of a's block.
func healthy(t *testing.T) *world {
	w := &world{Fake: datastoretest.NewFake(), t: t}
	w.ipam = ipam.NewClient(w.Fake, func() time.Time { return start })
	w.pool("pool", "10.0.0.0/26", 28)
	ready := true
	w.create(&api.ClusterInformation{Meta: api.Meta{Name: "default"}, Spec: api.ClusterInformationSpec{DatastoreReady: &ready}})
	for _, node := range []string{"a", "b"} {
		tunnel := w.assign(names.TunnelHandle(node), node, map[string]string{"node": node, "type": inventory.TypeIPIP})
		w.create(&api.Node{Meta: api.Meta{Name: node, Annotations: map[string]string{api.AnnotationIPv4TunnelAddr: tunnel.String()}}})
		w.pod("of-"+node, node)
	}
	w.pod("borrower", "b", w.addressOf("of-a").Next())
	return w
}

func (w *world) create(obj api.Resource) {
	w.t.Helper()
	errtest.Must(w.t, w.Create(context.Background(), obj))
}

func (w *world) pool(name, cidr string, blockSize int) {
	w.t.Helper()
	w.create(&api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{CIDR: cidr, BlockSize: blockSize}})
}

func (w *world) assign(handle, node string, attrs map[string]string, wanted ...netip.Addr) netip.Addr {
	w.t.Helper()
	got, err := w.ipam.Assign(context.Background(), ipam.Request{
		Owner: ipam.Owner{Handle: handle, Attrs: attrs}, Host: node, V4: true, Use: api.UseWorkload, Addresses: wanted,
	})
	errtest.Must(w.t, err)
	return got[0].Address
}

// pod starts a pod on a node.
func (w *world) pod(name, node string, wanted ...netip.Addr) netip.Addr {
	w.t.Helper()
	a := w.assign("net."+name, node, map[string]string{"node": node, "namespace": "default", "pod": name}, wanted...)
	w.create(podWith(name, node, a.String()))
	return a
}

func podWith(name, node string, addrs ...string) *api.Pod {
	p := &api.Pod{Meta: api.Meta{Name: name, Namespace: "default"}, Spec: api.PodSpec{NodeName: node}, Status: api.PodStatus{Phase: "Running"}}
	for _, a := range addrs {
		p.Status.PodIP = addrs[0]
		p.Status.PodIPs = append(p.Status.PodIPs, api.PodIP{IP: a})
	}
	return p
}

func (w *world) addressOf(pod string) netip.Addr {
	w.t.Helper()
	addrs, err := w.ipam.Addresses(context.Background(), "net."+pod)
	if err != nil || len(addrs) != 1 {
		w.t.Fatal(addrs, err)
	}
	return addrs[0]
}

// edit changes a stored object.
func edit[T any, P interface {
	*T
	api.Resource
}](w *world, name string, change func(P)) {
	w.t.Helper()
	obj := P(new(T))
	obj.GetMeta().Name = name
	if pod, ok := any(obj).(*api.Pod); ok {
		pod.Namespace = "default"
	}
	errtest.Must(w.t, w.Get(context.Background(), obj))
	change(obj)
	errtest.Must(w.t, w.Update(context.Background(), obj))
}

// remove deletes a stored object.
func (w *world) remove(obj api.Resource) {
	w.t.Helper()
	errtest.Must(w.t, w.Get(context.Background(), obj))
	errtest.Must(w.t, w.Delete(context.Background(), obj))
}

func (w *world) view() *inventory.View {
	w.t.Helper()
	v, err := inventory.Read(context.Background(), inventory.Source{IPAM: w.Fake, Cluster: w.Fake}, func() time.Time { return start })
	errtest.Must(w.t, err)
	return &v
}

// blockOf returns the name of the block of a node.
func (w *world) blockOf(node string) string {
	w.t.Helper()
	for _, b := range w.view().Blocks {
		if owner, _ := b.Owner(); owner == node {
			return b.Name
		}
	}
	w.t.Fatalf("%s has no block", node)
	return ""
}

func (w *world) cidrOf(node string) netip.Prefix {
	cidr, _ := names.ParseBlock(w.blockOf(node))
	return cidr
}

// newBlock claims one more block for a node, without addresses in use.
func (w *world) newBlock(node string) string {
	w.t.Helper()
	used := map[string]bool{w.blockOf("a"): true, w.blockOf("b"): true}
	for _, cidr := range []string{"10.0.0.0/28", "10.0.0.16/28", "10.0.0.32/28", "10.0.0.48/28"} {
		r := netip.MustParsePrefix(cidr)
		if used[names.Block(r)] {
			continue
		}
		w.assign("net.passing", node, map[string]string{"node": node}, r.Addr())
		if _, err := w.ipam.Release(context.Background(), "net.passing"); err != nil {
			w.t.Fatal(err)
		}
		return names.Block(r)
	}
	w.t.Fatal("no block is left")
	return ""
}

// brief returns a finding in one line.
func brief(f audit.Finding) string {
	text := fmt.Sprintf("%s %s %s", f.Grade, f.Kind, strings.SplitN(f.Object, "/", 2)[0])
	if f.Pod != "" {
		text += " " + f.Pod
	}
	if f.Node != "" {
		text += " on " + f.Node
	}
	if f.Fix != "" {
		text += ": " + string(f.Fix)
	}
	return text
}

func check(w *world) []string {
	var got []string
	for _, f := range audit.Check(w.view()) {
		got = append(got, brief(f))
	}
	return got
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(*world)
		want   []string
	}{
		{"nothing", func(*world) {}, nil},

		// Addresses without a user.
		{"the pod is gone", func(w *world) { w.remove(podWith("of-a", "a")) }, []string{"leak address-no-pod IPAMBlock default/of-a on a: free"}},
		{"the pod has finished", func(w *world) {
			edit(w, "of-a", func(p *api.Pod) { p.Status.Phase = "Succeeded" })
		}, []string{"leak address-no-pod IPAMBlock default/of-a on a: free"}},
		{"the pod runs elsewhere", func(w *world) {
			w.remove(podWith("of-a", "a"))
			w.create(podWith("of-a", "b"))
		}, []string{"leak address-other-node IPAMBlock default/of-a on a: free"}},
		{"the pod has another address", func(w *world) {
			w.assign("net.of-a-2", "a", map[string]string{"node": "a", "namespace": "default", "pod": "of-a"})
		}, []string{"leak address-not-its-pod IPAMBlock default/of-a on a: free"}},
		{"one of the two addresses that it has for a pod", func(w *world) {
			first := w.addressOf("of-a")
			second := w.assign("net.second", "a", map[string]string{"node": "a", "namespace": "default", "pod": "of-a"})
			edit(w, w.blockOf("a"), func(b *api.IPAMBlock) {
				b.Spec.Attributes[*b.Spec.Allocations[ordinal(w, second)]].HandleID = ptr("net.of-a")
			})
			edit(w, "net.of-a", func(h *api.IPAMHandle) { h.Spec.Block[w.cidrOf("a").String()] = 2 })
			w.remove(&api.IPAMHandle{Meta: api.Meta{Name: "net.second"}})
			edit(w, "of-a", func(p *api.Pod) { p.Status.PodIPs = []api.PodIP{{IP: first.String()}} })
		}, []string{"leak address-not-its-pod IPAMBlock default/of-a on a"}},
		{"the pod has not said so yet", func(w *world) {
			w.assign("net.new", "a", map[string]string{"node": "a", "namespace": "default", "pod": "new"})
			w.create(podWith("new", "a"))
		}, nil},
		{"a container of a node that is gone", func(w *world) {
			w.assign("net.cid", "a", map[string]string{"node": "c"})
		}, []string{"leak address-dead-node IPAMBlock on c: free"}},
		{"no handle", func(w *world) {
			w.assign("net.x", "a", map[string]string{"node": "a", "note": "by hand"})
			edit(w, w.blockOf("a"), func(b *api.IPAMBlock) {
				for i := range b.Spec.Attributes {
					if *b.Spec.Attributes[i].HandleID == "net.x" {
						b.Spec.Attributes[i].HandleID = nil
					}
				}
			})
			w.remove(&api.IPAMHandle{Meta: api.Meta{Name: "net.x"}})
		}, []string{"leak address-no-handle IPAMBlock on a: free-address"}},
		{"attributes that say nothing", func(w *world) {
			w.assign("net.x", "a", map[string]string{"note": "by hand"})
		}, []string{"note address-unknown IPAMBlock"}},
		{"a tunnel of a node that is gone", func(w *world) {
			w.assign(names.TunnelHandle("c"), "a", map[string]string{"node": "c", "type": inventory.TypeIPIP})
		}, []string{"leak tunnel-unused IPAMBlock on c: free"}},
		{"a tunnel that does not say so", func(w *world) {
			w.assign("vxlan-v6-tunnel-addr-a", "a", map[string]string{"node": "a", "type": inventory.TypeVXLANv6})
		}, []string{"leak tunnel-unused IPAMBlock on a"}},
		{"cooling without a cool-down", func(w *world) {
			edit(w, w.blockOf("a"), func(b *api.IPAMBlock) { coolOne(b, start.Add(-time.Hour)) })
		}, []string{"note address-cooling IPAMBlock"}},
		{"cooling", func(w *world) {
			w.create(&api.IPAMConfig{Meta: api.Meta{Name: "default"}, Spec: api.IPAMConfigSpec{AutoAllocateBlocks: true, IPCooldownSeconds: 60}})
			edit(w, w.blockOf("a"), func(b *api.IPAMBlock) { coolOne(b, start.Add(-time.Second)) })
		}, nil},
		{"released in the future", func(w *world) {
			w.create(&api.IPAMConfig{Meta: api.Meta{Name: "default"}, Spec: api.IPAMConfigSpec{AutoAllocateBlocks: true, IPCooldownSeconds: 60}})
			edit(w, w.blockOf("a"), func(b *api.IPAMBlock) { coolOne(b, start.Add(time.Hour)) })
		}, []string{"leak block-untidy IPAMBlock"}},

		// Addresses that others may get too.
		{"a live pod's address is free", func(w *world) {
			if _, err := w.ipam.Release(context.Background(), "net.of-a"); err != nil {
				w.t.Fatal(err)
			}
		}, []string{"danger pod-unallocated Pod default/of-a on a"}},
		{"the address of a pod that is being deleted is free", func(w *world) {
			if _, err := w.ipam.Release(context.Background(), "net.of-a"); err != nil {
				w.t.Fatal(err)
			}
			edit(w, "of-a", func(p *api.Pod) { p.DeletionTimestamp = "2026-03-01T11:59:00Z" })
		}, nil},
		{"a live pod's address is another's", func(w *world) {
			a := w.addressOf("of-a")
			w.create(podWith("thief", "b", a.String()))
		}, []string{"danger pod-address-twice Pod default/of-a on a", "danger pod-not-holder Pod default/thief on b"}},
		{"a live pod's address is a tunnel's", func(w *world) {
			tunnel := w.view().Nodes[0].Tunnels[inventory.TypeIPIP]
			w.create(podWith("thief", "b", tunnel.String()))
		}, []string{"danger pod-not-holder Pod default/thief on b"}},
		{"pods with one address in another network", func(w *world) {
			for _, name := range []string{"x", "y"} {
				a := w.pod(name, "a")
				edit(w, name, func(p *api.Pod) { p.Status.PodIPs = []api.PodIP{{IP: a.String()}, {IP: "172.16.0.1"}} })
			}
		}, nil},
		{"a pod's address is of no pool", func(w *world) { w.create(podWith("stranger", "a", "192.168.7.7")) },
			[]string{"note pod-outside-pools Pod default/stranger on a"}},
		{"a pod in its node's network", func(w *world) {
			p := podWith("host", "a", "10.0.0.40")
			p.Spec.HostNetwork = true
			w.create(p)
		}, nil},
		{"a tunnel's address is free", func(w *world) {
			edit(w, "b", func(n *api.Node) { n.Annotations[api.AnnotationIPv6VXLANAddr] = "fd00::1" }) // of no pool: by hand
			edit(w, "a", func(n *api.Node) { n.Annotations[api.AnnotationIPv4VXLANAddr] = "10.0.0.63" })
		}, []string{"danger tunnel-unallocated Node on a"}},
		{"a tunnel's address is a pod's", func(w *world) {
			pod := w.addressOf("of-b")
			edit(w, "a", func(n *api.Node) { n.Annotations[api.AnnotationIPv4VXLANAddr] = pod.String() })
		}, []string{"danger tunnel-not-holder Node on a"}},

		// Handles.
		{"a handle is missing", func(w *world) { w.remove(&api.IPAMHandle{Meta: api.Meta{Name: "net.of-a"}}) },
			[]string{"leak handle-missing IPAMHandle: recount"}},
		{"a handle holds nothing", func(w *world) {
			w.create(&api.IPAMHandle{Meta: api.Meta{Name: "net.empty"}, Spec: api.IPAMHandleSpec{HandleID: "net.Empty", Block: map[string]int{}}})
		}, []string{"leak handle-empty IPAMHandle: remove-handle"}},
		{"a handle of a node's tunnel holds nothing", func(w *world) {
			w.create(&api.IPAMHandle{Meta: api.Meta{Name: "vxlan-tunnel-addr-a"},
				Spec: api.IPAMHandleSpec{HandleID: "vxlan-tunnel-addr-a", Block: map[string]int{}}})
		}, nil},
		{"a handle counts wrong", func(w *world) {
			edit(w, "net.of-a", func(h *api.IPAMHandle) { h.Spec.Block[w.cidrOf("b").String()] = 1 })
		}, []string{"leak handle-count IPAMHandle: recount"}},
		{"a handle names no range", func(w *world) {
			edit(w, "net.of-a", func(h *api.IPAMHandle) { h.Spec.Block["x"] = 1 })
		}, []string{"leak handle-count IPAMHandle: recount"}},
		{"a handle of another name", func(w *world) {
			w.create(&api.IPAMHandle{Meta: api.Meta{Name: "other"},
				Spec: api.IPAMHandleSpec{HandleID: "net.of-a", Block: map[string]int{w.cidrOf("a").String(): 1}}})
		}, []string{"danger handle-name IPAMHandle: remove-handle"}},

		// Blocks.
		{"a block contradicts itself", func(w *world) {
			edit(w, w.blockOf("b"), func(b *api.IPAMBlock) { b.Spec.Unallocated = b.Spec.Unallocated[1:] })
		}, []string{"danger block-damaged IPAMBlock"}},
		{"a block from a backup", func(w *world) {
			edit(w, w.blockOf("a"), func(b *api.IPAMBlock) { b.Spec.SequenceNumber = 1 })
		}, []string{
			"leak block-untidy IPAMBlock on a", "leak block-untidy IPAMBlock default/of-a on a",
			"leak block-untidy IPAMBlock default/borrower on b"}},
		{"a block of no pool", func(w *world) {
			w.newBlock("a")
			edit(w, "pool", func(p *api.IPPool) { p.Spec.CIDR = "10.0.1.0/26" })
		}, []string{
			"leak block-no-pool IPAMBlock on a: remove-block", "leak block-no-pool IPAMBlock on b", "leak block-no-pool IPAMBlock on a",
			"note block-surplus IPAMBlock on a: remove-block"}},
		{"an empty block more", func(w *world) { w.newBlock("a") }, []string{"note block-surplus IPAMBlock on a: remove-block"}},
		{"an empty block of the other family", func(w *world) {
			w.pool("v6", "fd00::/121", 125)
			w.create(w.blockLike(netip.MustParsePrefix("fd00::/125"), "a"))
			w.claim("a", "fd00::/125", api.AffinityConfirmed)
		}, nil},
		{"the only block of a family, of a pool that is for others", func(w *world) {
			w.create(&api.IPPool{Meta: api.Meta{Name: "v6"}, Spec: api.IPPoolSpec{CIDR: "fd00::/121", BlockSize: 125, NodeSelector: "x == 'y'"}})
			w.create(w.blockLike(netip.MustParsePrefix("fd00::/125"), "a"))
			w.claim("a", "fd00::/125", api.AffinityConfirmed)
		}, []string{"note block-surplus IPAMBlock on a: remove-block"}},
		{"a block of nobody", func(w *world) {
			name := w.newBlock("a")
			edit(w, name, func(b *api.IPAMBlock) { b.Spec.Affinity = nil })
		}, []string{"danger claim-foreign BlockAffinity on a: remove-claim", "leak block-of-nobody IPAMBlock: remove-block"}},
		{"a block of a node that is gone", func(w *world) {
			w.newBlock("c")
		}, []string{"leak block-of-dead-node IPAMBlock on c: remove-block", "leak claim-of-dead-node BlockAffinity on c"}},
		{"an owner that is none", func(w *world) {
			edit(w, w.newBlock("a"), func(b *api.IPAMBlock) { b.Spec.Affinity = ptr("node-a") })
		}, []string{"danger block-bad-owner IPAMBlock", "danger claim-foreign BlockAffinity on a: remove-claim"}},
		{"a block without its claim", func(w *world) {
			w.remove(&api.BlockAffinity{Meta: api.Meta{Name: "a-" + w.blockOf("a")},
				Spec: api.BlockAffinitySpec{Node: "a", CIDR: w.cidrOf("a").String()}})
		}, []string{"leak block-unclaimed IPAMBlock on a: claim"}},
		{"a block within a block", func(w *world) {
			w.create(w.blockLike(netip.PrefixFrom(w.cidrOf("a").Addr(), 30), "a"))
		}, []string{"danger block-overlap IPAMBlock on a", "leak block-unclaimed IPAMBlock on a: claim",
			"note block-surplus IPAMBlock on a: remove-block"}},

		// Claims.
		{"a claim was begun", func(w *world) { w.claim("a", "10.0.0.64/28", api.AffinityPending) },
			[]string{"leak claim-pending BlockAffinity on a: remove-claim"}},
		{"a claim was not finished", func(w *world) {
			edit(w, "a-"+w.blockOf("a"), func(a *api.BlockAffinity) { a.Spec.State = api.AffinityPendingDeletion })
		}, []string{"leak claim-pending BlockAffinity on a: claim"}},
		{"a claim without a block", func(w *world) { w.claim("a", "10.0.0.64/28", api.AffinityConfirmed) },
			[]string{"leak claim-no-block BlockAffinity on a: remove-claim"}},
		{"a claim of a node that is gone", func(w *world) { w.claim("c", "10.0.0.64/28", api.AffinityConfirmed) },
			[]string{"leak claim-of-dead-node BlockAffinity on c: remove-claim"}},
		{"a claim of another's block", func(w *world) { w.claim("a", w.cidrOf("b").String(), api.AffinityPending) },
			[]string{"leak claim-pending BlockAffinity on a: remove-claim"}},
		{"two claims of one block", func(w *world) { w.claim("a", w.cidrOf("b").String(), api.AffinityConfirmed) },
			[]string{"danger claim-foreign BlockAffinity on a: remove-claim", "danger claim-twice BlockAffinity on b"}},
		{"a claim without labels", func(w *world) {
			edit(w, "a-"+w.blockOf("a"), func(a *api.BlockAffinity) { a.Labels = nil })
		}, []string{"leak claim-unlabelled BlockAffinity on a: label"}},
		{"a claim of nonsense", func(w *world) { w.claim("a", "nonsense", api.AffinityConfirmed) },
			[]string{"leak claim-damaged BlockAffinity on a: remove-claim"}},

		// Pools.
		{"two pools overlap", func(w *world) { w.pool("wide", "10.0.0.0/16", 26) }, []string{"danger pool-overlap IPPool"}},
		{"a pool of nonsense", func(w *world) { w.pool("odd", "10.1.0.7/16", 26) }, []string{"danger pool-damaged IPPool"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := healthy(t)
			tt.damage(w)
			got := check(w)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// coolOne makes a free address of a block one that was released at a time.
func coolOne(b *api.IPAMBlock, at time.Time) {
	s := &b.Spec
	s.Attributes = append(s.Attributes, api.AllocationAttribute{ReleasedAt: at.Format(time.RFC3339)})
	s.Allocations[s.Unallocated[0]] = ptr(len(s.Attributes) - 1)
	s.Unallocated = s.Unallocated[1:]
}

// ordinal returns the ordinal of an address in the block of a.
func ordinal(w *world, a netip.Addr) int {
	return int(a.As4()[3]) - int(w.cidrOf("a").Addr().As4()[3])
}

func (w *world) claim(node, cidr string, state api.AffinityState) {
	w.t.Helper()
	a := &api.BlockAffinity{
		Meta: api.Meta{Name: node + "-nonsense"},
		Spec: api.BlockAffinitySpec{State: state, Node: node, Type: api.AffinityHost, CIDR: cidr},
	}
	if r, err := netip.ParsePrefix(cidr); err == nil {
		a.Name, a.Labels = names.Affinity(node, r), names.AffinityLabels(node, api.AffinityHost, r)
	}
	w.create(a)
}

// blockLike returns an empty block of a node.
func (w *world) blockLike(cidr netip.Prefix, node string) *api.IPAMBlock {
	size := 1 << (cidr.Addr().BitLen() - cidr.Bits())
	b := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(cidr)}, Spec: api.IPAMBlockSpec{
		CIDR: cidr.String(), Affinity: ptr(names.HostAffinity(node)), Allocations: make([]*int, size),
		Attributes: []api.AllocationAttribute{}, SequenceNumber: 1,
	}}
	for i := range size {
		b.Spec.Unallocated = append(b.Spec.Unallocated, i)
	}
	return b
}

// A finding persists only if nothing about it has changed.
func TestPersisting(t *testing.T) {
	w := healthy(t)
	w.remove(podWith("of-a", "a"))
	first := audit.Check(w.view())
	w.pod("passing", "a") // others write the block meanwhile
	if got := audit.Persisting(first, audit.Check(w.view())); len(got) != 1 {
		t.Errorf("a leak that lasts: %v", got)
	}
	w.claim("a", "10.0.0.64/28", api.AffinityPending)
	begun := audit.Check(w.view())
	edit(w, "a-10-0-0-64-28", func(*api.BlockAffinity) {}) // its writer goes on
	if got := audit.Persisting(begun, audit.Check(w.view())); len(got) != 1 || got[0].Kind != audit.AddressNoPod {
		t.Errorf("a claim on which somebody works: %v", got)
	}
	// The address is given back, and to another pod, which dies too: that is another leak.
	addr := first[0].Address
	if _, err := w.ipam.Release(context.Background(), "net.of-a"); err != nil {
		t.Fatal(err)
	}
	w.pod("again", "a", addr)
	w.remove(podWith("again", "a"))
	for _, f := range audit.Persisting(begun, audit.Check(w.view())) {
		if f.Address == addr {
			t.Errorf("an address that another had meanwhile: %v", f)
		}
	}
}

// Everything that can be found has a grade.
func TestGrades(t *testing.T) {
	if worst, any := audit.Worst(nil); any || worst != audit.Note {
		t.Errorf("nothing was found: %v, %v", worst, any)
	}
	if worst, _ := audit.Worst([]audit.Finding{{Grade: audit.Leak}, {Grade: audit.Danger}, {}}); worst != audit.Danger {
		t.Errorf("the worst: %v", worst)
	}
	for _, k := range audit.Kinds() {
		if k.Explain() == "" {
			t.Errorf("%s is not explained", k)
		}
	}
}

func TestUsages(t *testing.T) {
	w := healthy(t)
	w.pool("v6", "fd00::/64", 122)
	w.create(&api.IPReservation{Meta: api.Meta{Name: "r"},
		Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.0.0.0/29", "10.0.0.0/30", "10.0.0.63", "192.168.0.0/16"}}})
	edit(w, w.blockOf("a"), func(b *api.IPAMBlock) { coolOne(b, start) })
	stray := w.blockLike(netip.MustParsePrefix("10.9.0.0/28"), "a")
	w.create(stray)
	all := audit.Usages(w.view())
	if len(all) != 3 || all[0].Name != "pool" || all[1].Name != "v6" || all[2].Name != "" {
		t.Fatalf("pools: %+v", all)
	}
	u := all[0]
	if u.Size.Int64() != 64 || u.InUse != 5 || u.Cooling != 1 || u.Borrowed != 1 || len(u.Blocks) != 2 {
		t.Errorf("the pool: %+v", u)
	}
	if all[1].Free.String() != "18446744073709551616" || all[2].Size.Int64() != 16 {
		t.Errorf("the others: %+v", all[1:])
	}
	for _, u := range all {
		sum := u.Free.Int64() + u.Reserved.Int64() + int64(u.InUse+u.Cooling)
		if u.Size.IsInt64() && sum != u.Size.Int64() {
			t.Errorf("%s: %d addresses of %d", u.Name, sum, u.Size)
		}
		for _, b := range u.Blocks {
			if b.Free+b.Reserved+b.InUse+b.Cooling != b.Size {
				t.Errorf("block %s: %+v", b.CIDR, b)
			}
		}
	}
}

// Whatever is stored, findings are complete and no pool has a negative number of free addresses.
func FuzzCheck(f *testing.F) {
	f.Add(
		`{"metadata":{"name":"10-0-0-0-30"},"spec":{"cidr":"10.0.0.0/30","affinity":"host:a","allocations":[0,null,null,1],"unallocated":[1,`+
			`2],"attributes":[{"handle_id":"h","secondary":{"node":"a","pod":"p","namespace":"n"}},{"releasedAt":"2026-01-02T03:04:05Z"}]}}`,
		`{"metadata":{"name":"h"},"spec":{"handleID":"H","block":{"10.0.0.0/30":2,"x":1}}}`,
		`{"metadata":{"name":"a-10-0-0-0-30"},"spec":{"state":"pending","node":"a","cidr":"10.0.0.0/30"}}`,
		`{"metadata":{"name":"p","namespace":"n"},"spec":{"nodeName":"b"},"status":{"podIP":"10.0.0.0"}}`,
		`{"metadata":{"name":"pool"},"spec":{"cidr":"10.0.0.0/24"}}`)
	f.Add(`{"metadata":{"name":"--128"},"spec":{"cidr":"::/128","allocations":[0],"attributes":[{}]}}`, `{}`,
		`{"spec":{"cidr":"::/0","node":"a"}}`, `{"status":{"podIP":"::ffff:1.2.3.4"}}`, `{"spec":{"cidr":"::/0"}}`)
	f.Fuzz(func(t *testing.T, block, handle, claim, pod, pool string) {
		v := &inventory.View{Taken: start, Ready: true, Nodes: []inventory.Node{{Meta: api.Meta{Name: "a"}}}}
		decode(block, &v.Blocks)
		decode(handle, &v.Handles)
		decode(claim, &v.Affinities)
		decode(pod, &v.Pods)
		decode(pool, &v.Pools)
		for _, finding := range audit.Check(v) {
			if finding.Kind.Explain() == "" || finding.Object == "" || finding.Detail == "" || finding.Fix == audit.ByHand && finding.Advice == "" {
				t.Errorf("half a finding: %+v", finding)
			}
		}
		for _, u := range audit.Usages(v) {
			if u.Free.Sign() < 0 {
				t.Errorf("fewer than no free addresses: %+v", u)
			}
		}
	})
}

// decode appends the object in a text, twice: a datastore may hold objects of the same content.
func decode[T any](text string, to *[]T) {
	for range 2 {
		var v T
		if json.Unmarshal([]byte(text), &v) == nil {
			*to = append(*to, v)
		}
	}
}
