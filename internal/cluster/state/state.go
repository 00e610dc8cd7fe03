// Package state has plain values of what the API server's watches report. It imports no client: packages that decide by
// these values (above all internal/agent/desired) compile without client-go.
package state

import (
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/cluster/services"
)

// Cluster is the cluster as a node's agent sees it: every node, pool and affinity, in no particular order.
type Cluster struct {
	// Group is the API group of the cluster's Calico objects; empty means groups.V1.
	Group groups.Group
	// Nodes have their metadata only.
	Nodes []api.Node
	// Self is this node with its addresses and its condition NetworkUnavailable, nil if it does not exist.
	Self       *api.Node
	Pools      []api.IPPool
	Affinities []api.BlockAffinity
	// BGP is the cluster's default BGPConfiguration, OwnBGP this node's (node.NAME); zero if there is none.
	BGP, OwnBGP api.BGPConfigurationSpec
	// MeshBFD is api.AnnotationBFD of the cluster's default BGPConfiguration.
	MeshBFD string
	// Ports are the BGP ports of the nodes that have their own, by the Node's name.
	Ports map[string]uint16
	// Felix is this node's FelixConfiguration over the cluster's default.
	Felix api.FelixConfigurationSpec
	// MeshPassword is the password that BGP's nodeMeshPassword refers to.
	MeshPassword Password
	// Peers are the BGPPeers, Passwords the passwords that they refer to, Filters the BGPFilters.
	Peers     []api.BGPPeer
	Filters   []api.BGPFilter
	Passwords map[api.Place]Password
	// Problems are objects that cannot be read.
	Problems []Problem
	// Unacted belong to the configurations for all nodes and for this one.
	Unacted []Unacted
	// Revision grows with every change of the rest.
	Revision uint64
}

// Problem is an object that cannot be read. The last valid version of it, if there was one, stays in force.
type Problem struct {
	Kind api.Type
	Name string
	// Err names the object, too.
	Err error
}

// Unacted is a configuration with fields of Calico's that have no effect.
type Unacted struct {
	Kind, Name string
	Fields     []string
}

// Password is a password in a Secret. It must never be logged or shown.
type Password struct {
	// Set: the cluster's configuration requires a password.
	Set bool
	// Text is the password; empty while Err is set. Err is why it is not known, and names the Secret and the key, not the
	// object that refers to them.
	Text string
	Err  error
	// Pending: the API server has not responded yet. Err is set then, too.
	Pending bool
}

// Services are the cluster's Services and their endpoints, in no particular order.
type Services struct {
	// Known: both have been listed completely since they were wanted. The listed objects stay while the API server is
	// absent.
	Known     bool
	Services  []api.Service
	Endpoints []services.Endpoints
	// Err is why the watches fail; nil while they work, or are closed.
	Err error
	// Problems are objects that cannot be read.
	Problems []Problem
}

// Assignment has the objects that an assignment on this node depends on, in no particular order, except the blocks.
type Assignment struct {
	// Group is the API group of the cluster's Calico objects.
	Group groups.Group
	// Held: no Calico object is written now: they are locked, or have just moved to the group.
	Held bool
	// Node is this node, metadata only; nil if it does not exist.
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

// Defaults are the objects that every cluster has, if they exist.
type Defaults struct {
	Information *api.ClusterInformation // nil if there is none
	IPAMConfig  bool
	Felix       bool // FelixConfiguration default
}

// Ready reports whether a ClusterInformation, nil if there is none, opens the datastore.
func Ready(info *api.ClusterInformation) bool {
	return info != nil && info.Spec.DatastoreReady != nil && *info.Spec.DatastoreReady
}
