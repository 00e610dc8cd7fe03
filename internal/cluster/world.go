package cluster

import (
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// World is what the cluster looks like now: every node, pool and affinity, in no particular order.
type World struct {
	// Nodes have their metadata only.
	Nodes []api.Node
	// Self is this node with its addresses and its condition NetworkUnavailable, nil if it does not exist.
	Self       *api.Node
	Pools      []api.IPPool
	Affinities []api.BlockAffinity
	// BGP is the cluster's default BGPConfiguration, OwnBGP that of this node (node.NAME); zero if there is none.
	BGP, OwnBGP api.BGPConfigurationSpec
	// Ports are the BGP ports of the nodes that have their own, by the Node's name.
	Ports map[string]uint16
	// Felix is this node's FelixConfiguration over the cluster's default.
	Felix api.FelixConfigurationSpec
	// MeshPassword is what BGP's nodeMeshPassword refers to.
	MeshPassword Password
	// Peers are the BGPPeers, Passwords what they refer to, Filters the BGPFilters.
	Peers     []api.BGPPeer
	Filters   []api.BGPFilter
	Passwords map[api.Place]Password
	// Problems are objects that cannot be read.
	Problems []Problem
	// Revision grows with every change of the rest.
	Revision uint64
}

// Problem is an object that cannot be read. What it was before, if that is known, stays in force.
type Problem struct {
	Kind api.Type
	Name string
	// Err names the object, too.
	Err error
}

// Password is one that lies in a Secret. It is never to be logged or shown.
type Password struct {
	// Set: the cluster's configuration asks for a password.
	Set bool
	// Text is the password, empty as long as Err says why it is not known. Err names the Secret and the key, not the object
	// that refers to them.
	Text string
	Err  error
	// Pending: the API server has been asked, and has not answered yet. Err says so, too.
	Pending bool
}

// Assignment is what the assignment of an address on this node depends on, in no particular order, but for the blocks.
type Assignment struct {
	// Node is this node, nil if it does not exist. It has its metadata only.
	Node         *api.Node
	Pools        []api.IPPool
	Reservations []api.IPReservation
	// Affinities are this node's.
	Affinities []api.BlockAffinity
	// Namespaces have their labels and Calico's annotations only.
	Namespaces []api.Namespace
	// Config and Information are the objects with the name default; nil if there is none.
	Config      *api.IPAMConfig
	Information *api.ClusterInformation
}

// Revision is that of World, for a reader who wants to know whether it has changed: that costs nothing.
func (w *Watch) Revision() uint64 { return w.revision.Load() }

// World returns what is known now. Before WaitForSync has returned it is incomplete.
func (w *Watch) World() World {
	world := World{Revision: w.revision.Load()} // first: the rest may be newer, never older
	world.Nodes = w.nodes.all(nil)
	world.Self = copied(w.own.get(w.self))
	world.Pools = w.pools.all(nil)
	world.Affinities = w.affinities.all(nil)
	world.BGP, world.OwnBGP = w.bgpSpec(api.DefaultName), w.bgpSpec(w.ownName())
	world.Ports = w.ports()
	world.Felix = w.felixSpec(w.ownName()).Over(w.felixSpec(api.DefaultName))
	world.MeshPassword = w.meshPassword()
	world.Peers, world.Passwords, world.Filters = w.peers.all(nil), w.passwords(), w.filters.all(nil)
	world.Problems = slices.Concat(w.pools.problems(), w.affinities.problems(), w.bgp.problems(), w.felix.problems(),
		w.peers.problems(), w.filters.problems())
	return world
}

// ownName is the name of the configurations that are for this node.
func (w *Watch) ownName() string { return "node." + w.self }

func (w *Watch) bgpSpec(name string) api.BGPConfigurationSpec {
	if c := w.bgp.get(name); c != nil {
		return c.Spec
	}
	return api.BGPConfigurationSpec{}
}

// ports returns what the objects node.NAME say.
func (w *Watch) ports() map[string]uint16 {
	ports := map[string]uint16{}
	for _, c := range w.bgp.all(nil) {
		if name, ok := strings.CutPrefix(c.Name, "node."); ok && c.Spec.ListenPort != 0 {
			ports[name] = c.Spec.ListenPort
		}
	}
	return ports
}

func (w *Watch) felixSpec(name string) api.FelixConfigurationSpec {
	if c := w.felix.get(name); c != nil {
		return c.Spec
	}
	return api.FelixConfigurationSpec{}
}

// Assignment returns what is known now. Before WaitForSync has returned it is incomplete.
func (w *Watch) Assignment() Assignment {
	return Assignment{
		Node:         copied(w.nodes.get(w.self)),
		Pools:        w.pools.all(nil),
		Reservations: w.reservations.all(nil),
		Affinities:   w.OwnAffinities(),
		Namespaces:   w.namespaces.all(nil),
		Config:       copied(w.configs.get(api.DefaultName)),
		Information:  copied(w.information.get(api.DefaultName)),
	}
}

// OwnAffinities returns this node's affinities, whole: they can be written again.
func (w *Watch) OwnAffinities() []api.BlockAffinity {
	return w.affinities.all(func(a *api.BlockAffinity) bool { return a.Spec.Node == w.self })
}

// Basics are the objects that every cluster has.
type Basics struct {
	Information *api.ClusterInformation // nil if there is none
	IPAMConfig  bool
	Felix       bool
}

// Basics returns what there is of them.
func (w *Watch) Basics() Basics {
	return Basics{
		Information: copied(w.information.get(api.DefaultName)),
		IPAMConfig:  w.configs.get(api.DefaultName) != nil,
		Felix:       w.felix.get(api.DefaultName) != nil,
	}
}

// HasPools reports that there is an IPPool, usable or not.
func (w *Watch) HasPools() bool { return len(w.pools.all(nil)) > 0 }

// DatastoreReady reports that nobody has locked the datastore for a migration, and that it has been set up.
func (w *Watch) DatastoreReady() bool { return Ready(w.information.get(api.DefaultName)) }

// Ready reports that a ClusterInformation, nil if there is none, lets the datastore be used.
func Ready(info *api.ClusterInformation) bool {
	return info != nil && info.Spec.DatastoreReady != nil && *info.Spec.DatastoreReady
}

// copied lets a reader have an object of his own, as far as its fields go.
func copied[T any](of *T) *T {
	if of == nil {
		return nil
	}
	c := *of
	return &c
}
