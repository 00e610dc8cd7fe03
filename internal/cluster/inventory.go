package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Inventory keeps a View of the whole cluster's addresses up to date, for the controllers: 30,000 pods take a few tens
// of megabytes. It follows handles by name only.
type Inventory struct {
	feed
	nodes        *objectStore[inventory.Node]
	pods         *objectStore[inventory.Pod]
	pools        *objectStore[api.IPPool]
	blocks       *objectStore[inventory.Block]
	affinities   *objectStore[api.BlockAffinity]
	handles      *objectStore[inventory.Handle]
	configs      *objectStore[api.IPAMConfig]
	reservations *objectStore[api.IPReservation]
	information  *objectStore[api.ClusterInformation]
	settings     *objectStore[api.KubeControllersConfiguration]

	revision                    atomic.Uint64
	changed, nodeEnd, balancing chan struct{}
}

// NewInventory prepares the watches; Run starts them. Without inKubernetes the addresses are in another datastore, and
// only Nodes and Pods are followed.
func NewInventory(at Server, inKubernetes bool, log *slog.Logger) (*Inventory, error) {
	feed, err := newFeed(at, log)
	if err != nil {
		return nil, err
	}
	w := &Inventory{feed: feed, changed: make(chan struct{}, 1), nodeEnd: make(chan struct{}, 1), balancing: make(chan struct{}, 1)}
	w.makeStores()
	err = errors.Join(
		add(&w.feed, source[inventory.Node]{proof: true, pages: podPage}, w.nodes),
		add(&w.feed, source[inventory.Pod]{proof: true, pages: podPage}, w.pods),
	)
	if !inKubernetes { // Probe reads it
		return w, errors.Join(err, add(&w.feed, source[api.ClusterInformation]{optional: true}, w.information),
			w.movesBy(w.information, w.noteChange))
	}
	return w, errors.Join(err,
		add(&w.feed, source[api.IPPool]{proof: true}, w.pools),
		add(&w.feed, source[inventory.Block]{proof: true, pages: podPage}, w.blocks),
		add(&w.feed, source[api.BlockAffinity]{proof: true}, w.affinities),
		add(&w.feed, source[inventory.Handle]{partial: true, proof: true, pages: podPage}, w.handles),
		add(&w.feed, source[api.IPAMConfig]{proof: true}, w.configs),
		add(&w.feed, source[api.IPReservation]{proof: true}, w.reservations),
		add(&w.feed, source[api.ClusterInformation]{proof: true}, w.information),
		add(&w.feed, source[api.KubeControllersConfiguration]{optional: true}, w.settings),
		w.movesBy(w.information, func() { w.noteChange(); wait.Signal(w.balancing) }),
	)
}

// podPage bounds one response to a list of a numerous kind, if the API server does not stream lists: 30,000 pods at
// once are 150 MB.
const podPage = 500

func (w *Inventory) makeStores() {
	w.nodes = newObjectStore(sameInventoryNode, func(n *inventory.Node) {
		if w.nodes.get(n.Name) == nil {
			wait.Signal(w.nodeEnd)
		}
		w.noteChange()
	})
	w.pods = newObjectStore(samePod, func(*inventory.Pod) { w.noteChange() })
	w.pools = newObjectStore(sameRevision, func(*api.IPPool) { w.noteChange(); wait.Signal(w.balancing) })
	w.blocks = newObjectStore(sameRevision, func(b *inventory.Block) {
		w.noteChange()
		if b.OfServices() {
			wait.Signal(w.balancing)
		}
	})
	w.affinities = newObjectStore(sameRevision, func(*api.BlockAffinity) { w.noteChange() })
	w.handles = newObjectStore(sameRevision, func(*inventory.Handle) { w.noteChange() })
	w.configs = newObjectStore(sameRevision, func(*api.IPAMConfig) { w.noteChange() })
	w.reservations = newObjectStore(sameRevision, func(*api.IPReservation) { w.noteChange() })
	w.information = newObjectStore(sameRevision, func(*api.ClusterInformation) { w.noteChange(); wait.Signal(w.move.changed) })
	w.settings = newObjectStore(sameRevision, func(c *api.KubeControllersConfiguration) {
		tellUnacted(w.log, c)
		w.noteChange()
		wait.Signal(w.balancing)
	})
}

// sameInventoryNode compares the kept parts of Nodes: kubelets update their Nodes all the time.
func sameInventoryNode(before, after *inventory.Node) bool {
	if before.UID != after.UID || before.Routing != after.Routing || len(before.Tunnels) != len(after.Tunnels) ||
		!sameMeta(&before.Meta, &after.Meta) ||
		!slices.Equal(before.Stated, after.Stated) || !slices.Equal(before.Internal, after.Internal) {
		return false
	}
	for kind, a := range before.Tunnels {
		if after.Tunnels[kind] != a {
			return false
		}
	}
	return true
}

// samePod compares the kept parts of Pods: most updates by kubelets do not matter.
func samePod(before, after *inventory.Pod) bool {
	return before.UID == after.UID && before.Node == after.Node && before.Finished == after.Finished && before.Reported == after.Reported &&
		slices.Equal(before.Addresses, after.Addresses)
}

func (w *Inventory) noteChange() {
	w.revision.Add(1)
	wait.Signal(w.changed)
}

// Changed wakes its one reader after the View changed. Wake-ups are coalesced and carry nothing.
func (w *Inventory) Changed() <-chan struct{} { return w.changed }

// BalancingChanged wakes its one reader after Balancing changed, or the settings.
func (w *Inventory) BalancingChanged() <-chan struct{} { return w.balancing }

// Balancing returns the inputs of Services' addresses: all pools, the blocks with addresses of Services, and a function
// that reports whether a handle exists. ready is false if the datastore is locked or partly unreadable.
func (w *Inventory) Balancing() (pools []api.IPPool, blocks []inventory.Block, hasHandle func(name string) bool, ready bool) {
	ready = w.mayWrite() && !w.unreadable()
	return w.pools.all(nil), w.blocks.all((*inventory.Block).OfServices), func(name string) bool { return w.handles.get(name) != nil }, ready
}

// NodeEnded wakes its one reader after a Node was deleted.
func (w *Inventory) NodeEnded() <-chan struct{} { return w.nodeEnd }

// Run watches until ctx ends.
func (w *Inventory) Run(ctx context.Context) error {
	w.run(ctx)
	return nil
}

// View returns the present state; before WaitForSync has returned it is incomplete. It is known to be complete up to
// its Taken, which stays behind while an API server is absent, or a watch is stuck. The caller must not change the
// elements of the View's slices.
func (w *Inventory) View() inventory.View {
	taken := w.streams.Confirmed() // first: the rest may be newer, never older
	v := inventory.View{
		Taken: taken, Config: ipam.DefaultConfig(),
		Pools: w.pools.all(nil), Reservations: w.reservations.all(nil), Affinities: w.affinities.all(standing), Blocks: w.blocks.all(nil),
		Handles: w.handles.all(nil), Nodes: w.nodes.all(nil), Pods: w.pods.all(nil),
	}
	if c := w.configs.get(api.DefaultName); c != nil {
		v.Config = c.Spec
	}
	v.Information = copied(w.information.get(api.DefaultName))
	v.Ready = w.mayWrite() && !w.unreadable()
	return v
}

// standing leaves out affinities that are marked deleted.
func standing(a *api.BlockAffinity) bool { return !a.MarkedDeleted() }

// unreadable reports whether an object cannot be decoded: its content is unknown, so the other objects allow no
// conclusions.
func (w *Inventory) unreadable() bool {
	return len(w.blocks.problems())+len(w.pods.problems())+len(w.nodes.problems())+len(w.reservations.problems()) > 0
}

// Nodes returns all Nodes. The caller must not change the elements of the slice.
func (w *Inventory) Nodes() []inventory.Node { return w.nodes.all(nil) }

// Settings returns the KubeControllersConfiguration default, nil if there is none.
func (w *Inventory) Settings() *api.KubeControllersConfiguration {
	return copied(w.settings.get(api.DefaultName))
}

// Probe is like Watch.Probe.
func (w *Inventory) Probe(ctx context.Context) error { return w.probe(ctx, w.information) }

// Behind returns the time since Confirmed.
func (w *Inventory) Behind(now time.Time) time.Duration { return now.Sub(w.streams.Confirmed()) }
