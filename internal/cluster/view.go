package cluster

import (
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// Revision returns the revision of Cluster, for readers that compare revisions instead of content.
func (w *Watch) Revision() uint64 { return w.revision.Load() }

// Cluster returns the present state. Before WaitForSync has returned it is incomplete.
func (w *Watch) Cluster() state.Cluster {
	c := state.Cluster{Group: w.server.Group.Known(), Revision: w.revision.Load()} // first: the rest may only be newer
	c.Nodes = w.nodes.all(nil)
	c.Self = copied(w.own.get(w.self))
	c.Pools = w.pools.all(nil)
	c.Affinities = w.affinities.all(nil)
	c.BGP, c.OwnBGP = w.bgpSpec(api.DefaultName), w.bgpSpec(w.ownName())
	if config := w.bgp.get(api.DefaultName); config != nil {
		c.MeshBFD = names.Annotation(&config.Meta, api.AnnotationBFD)
	}
	c.Ports = w.ports()
	c.Felix = w.felixSpec(w.ownName()).Over(w.felixSpec(api.DefaultName))
	c.MeshPassword = w.meshPassword()
	c.Peers, c.Passwords, c.Filters = w.peers.all(nil), w.passwords(), w.filters.all(nil)
	c.Problems = slices.Concat(w.pools.problems(), w.affinities.problems(), w.bgp.problems(), w.felix.problems(),
		w.peers.problems(), w.filters.problems())
	c.Unacted = append(unacted(w.bgp, api.DefaultName, w.ownName()), unacted(w.felix, api.DefaultName, w.ownName())...)
	return c
}

// ownName returns the name of this node's configurations.
func (w *Watch) ownName() string { return "node." + w.self }

func (w *Watch) bgpSpec(name string) api.BGPConfigurationSpec {
	if c := w.bgp.get(name); c != nil {
		return c.Spec
	}
	return api.BGPConfigurationSpec{}
}

// ports returns the BGP ports in the objects node.NAME.
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

// Assignment returns the present state. Before WaitForSync has returned it is incomplete.
func (w *Watch) Assignment() state.Assignment {
	return state.Assignment{
		Group:        w.server.Group.Known(),
		Held:         w.server.Group.Held(),
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

// Defaults returns the objects that every cluster has, if they exist.
func (w *Watch) Defaults() state.Defaults {
	return state.Defaults{
		Information: copied(w.information.get(api.DefaultName)),
		IPAMConfig:  w.configs.get(api.DefaultName) != nil,
		Felix:       w.felix.get(api.DefaultName) != nil,
	}
}

// HasPools reports whether there is an IPPool, usable or not.
func (w *Watch) HasPools() bool { return len(w.pools.all(nil)) > 0 }

// DatastoreReady reports whether the datastore is set up, and neither locked for a migration nor held before the
// arrival in another group.
func (w *Watch) DatastoreReady() bool { return w.mayWrite() }

// copied returns a shallow copy of an object.
func copied[T any](of *T) *T {
	if of == nil {
		return nil
	}
	c := *of
	return &c
}
