package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/tortie-net/tortie/internal/api"
)

// World is what the cluster looks like now: every node, pool and affinity, in no particular order.
type World struct {
	// Nodes have their metadata only.
	Nodes      []api.Node
	Pools      []api.IPPool
	Affinities []api.BlockAffinity
	// BGP is the cluster's default BGPConfiguration, OwnBGP that of this node (node.NAME); zero if there is none.
	BGP, OwnBGP api.BGPConfigurationSpec
	// Felix is this node's FelixConfiguration over the cluster's default.
	Felix api.FelixConfigurationSpec
	// MeshPassword is what BGP's nodeMeshPassword refers to.
	MeshPassword Password
	// Revision grows with every change of the rest.
	Revision uint64
}

// Password is one that lies in a Secret. It is never to be logged or shown.
type Password struct {
	// Set: the cluster's configuration asks for a password.
	Set bool
	// Text is the password, empty as long as Err says why it is not known.
	Text string
	Err  error
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

// World returns what is known now. Before WaitForSync has returned it is incomplete.
func (w *Watch) World() World {
	world := World{
		Pools:      values[api.IPPool](w.pools, nil),
		Affinities: values[api.BlockAffinity](w.affinities, nil),
	}
	for _, item := range w.nodes.GetStore().List() {
		world.Nodes = append(world.Nodes, api.Node{Meta: metaOf(item)})
	}
	if c := byName[api.BGPConfiguration](w.bgp, api.DefaultName); c != nil {
		world.BGP = c.Spec
	}
	return world
}

// Assignment returns what is known now. Before WaitForSync has returned it is incomplete.
func (w *Watch) Assignment() Assignment {
	a := Assignment{
		Pools:        values[api.IPPool](w.pools, nil),
		Reservations: values[api.IPReservation](w.reservations, nil),
		Affinities:   values(w.affinities, func(a *api.BlockAffinity) bool { return a.Spec.Node == w.self }),
		Config:       byName[api.IPAMConfig](w.configs, api.DefaultName),
		Information:  byName[api.ClusterInformation](w.information, api.DefaultName),
	}
	if item, ok, err := w.nodes.GetStore().GetByKey(w.self); ok && err == nil {
		a.Node = &api.Node{Meta: metaOf(item)}
	}
	for _, item := range w.namespaces.GetStore().List() {
		a.Namespaces = append(a.Namespaces, api.Namespace{Meta: metaOf(item)})
	}
	return a
}

// DatastoreReady reports that nobody has locked the datastore for a migration, and that it has been set up.
func (w *Watch) DatastoreReady() bool {
	return Ready(byName[api.ClusterInformation](w.information, api.DefaultName))
}

// Ready reports that a ClusterInformation, nil if there is none, lets the datastore be used.
func Ready(info *api.ClusterInformation) bool {
	return info != nil && info.Spec.DatastoreReady != nil && *info.Spec.DatastoreReady
}

// metaOf returns what is kept of an object that is watched as metadata only.
func metaOf(item any) api.Meta {
	n, ok := item.(*metav1.PartialObjectMetadata)
	if !ok {
		return api.Meta{}
	}
	return api.Meta{Name: n.Name, UID: string(n.UID), Labels: n.Labels, Annotations: n.Annotations}
}

// values returns what an informer has seen, as the project's own type; all if keep is nil.
func values[T any](informer cache.SharedIndexInformer, keep func(*T) bool) []T {
	items := informer.GetStore().List()
	var out []T
	for _, item := range items {
		if o, ok := item.(*object[T]); ok && (keep == nil || keep(&o.value)) {
			out = append(out, o.value)
		}
	}
	return out
}

// byName returns a copy of the object with that name, nil if there is none.
func byName[T any](informer cache.SharedIndexInformer, name string) *T {
	item, ok, err := informer.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	value := item.(*object[T]).value
	return &value
}
