// Package inventory is the holders and the users of addresses as plain data: one View of one moment, read from a
// datastore and from Kubernetes. Index reports whether an address is in use; other conclusions from a View belong to
// packages audit and gc.
//
// Its types decode themselves from the API's objects and keep only what matters, so that a View of 30,000 pods is
// small.
package inventory

import (
	"net/netip"
	"slices"
	"time"
	"unique"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// View is the cluster's addresses at one moment, in no particular order.
type View struct {
	// Taken is when it was read; of a View from watches, until when it is known to be complete.
	Taken time.Time
	// Ready is ClusterInformation's datastoreReady: false during a migration, when nothing may be written.
	Ready bool
	// Information is the ClusterInformation, nil if there is none.
	Information  *api.ClusterInformation
	Config       api.IPAMConfigSpec
	Pools        []api.IPPool
	Reservations []api.IPReservation
	Blocks       []Block
	Affinities   []api.BlockAffinity
	Handles      []Handle
	Nodes        []Node
	Pods         []Pod
	// Services are nil where they are not known.
	Services []Service
}

// Block is an IPAMBlock.
type Block struct {
	api.Meta // without labels and annotations
	CIDR     netip.Prefix
	// Affinity is the owner as it is stored: "host:NODE", "virtual:load-balancer", or empty.
	Affinity string
	// Sequence is the block's own number.
	Sequence uint64
	// Allocations are the addresses that are taken or cool down, in ascending order.
	Allocations []Allocation
	// Free is how many addresses can be assigned, reserved ones among them.
	Free int
	// Damage is the contradiction in the block's fields, nil if there is none. Of a damaged block only the name, the
	// revision and, if the name has it, the CIDR are known.
	Damage error
}

// Owner returns the node that a block has an affinity to; false if it has none, or one that is not to a node.
func (b *Block) Owner() (string, bool) { return owner(b.Affinity) }

// OfServices reports whether the block serves Services: it has their owner, or an address of one.
func (b *Block) OfServices() bool {
	return b.Affinity == names.LoadBalancer || slices.ContainsFunc(b.Allocations, func(a Allocation) bool { return a.Class == LoadBalancer })
}

// Borrowed reports whether an address of the block is used on another node than the block's.
func (b *Block) Borrowed(a *Allocation) bool {
	owner, hosted := b.Owner()
	return hosted && a.Node != "" && a.Node != owner
}

// Allocation is one address of a block that is not free.
type Allocation struct {
	Address netip.Addr
	// Handle is the ID of the IPAMHandle that it is released by; empty if it has none.
	Handle string
	// Sequence is the block's sequence number at the assignment; 0 if the block has none.
	Sequence uint64
	// Class is the kind of its holder.
	Class Class
	// Further: the address is on an additional interface of the pod, as Multus adds them. The pod's status may not list
	// it.
	Further bool
	// Node, Namespace, Pod and Service name the holder, as far as the attributes do; Type is the type in a tunnel's
	// attributes.
	Node, Namespace, Pod, Service, Type string
	// Since is the time of the assignment in the attributes; zero if they have none.
	Since time.Time
	// Released is when it was released, for one that cools down; zero for one that is in use.
	Released time.Time
}

// Cooling reports that the address was released and is not free yet.
func (a *Allocation) Cooling() bool { return !a.Released.IsZero() }

// Class is the kind of an address's holder.
type Class uint8

// The classes of allocations, by their attributes.
const (
	Unknown      Class = iota // not clear from the attributes
	OfPod                     // a pod's: node, namespace and pod are known
	OfContainer               // of a container that is no pod
	Tunnel                    // of a node's tunnel
	LoadBalancer              // of a Service
	VM                        // of a virtual machine, which outlives its pods
	Windows                   // reserved by Windows
)

var classes = [...]string{"unknown", "pod", "container", "tunnel", "load balancer", "virtual machine", "Windows"}

func (c Class) String() string { return classes[c] }

// Handle is an IPAMHandle.
type Handle struct {
	api.Meta // without labels and annotations
	// ID is the handle's ID in its own case. Blocks are the numbers of addresses by block that it records. Both are empty
	// if Named.
	ID     string
	Blocks map[netip.Prefix]int
	// Odd are keys of spec.block that are no CIDRs.
	Odd []string
	// Named: only the object's metadata was read. Its name is the ID in lower case.
	Named bool
	// Node is the node named in the handle. Calico's handles name none.
	Node string
}

// Node is a Kubernetes Node.
type Node struct {
	api.Meta // without annotations
	// Tunnels are the addresses of its tunnels, by the type that allocations of them have.
	Tunnels map[string]netip.Addr
	// Stated are the addresses in its agent's annotations, Internal its InternalIPs from the kubelet.
	Stated, Internal []netip.Addr
	// Routing is what the controllers choose route reflectors by.
	Routing Routing
}

// Routing is a Node's state as a possible route reflector. It is comparable, and a heartbeat of the kubelet does not
// change it.
type Routing struct {
	// ClusterID and ASN are Calico's annotations, and Word is tortie.io/reflection, in which agents up to this release
	// named their reflectors; empty if the Node has none.
	ClusterID, ASN, Word string
	// Ready is the status of the condition Ready, and Since its last transition, in RFC 3339.
	Ready bool
	Since string
	// Barred: the Node has tortie.io/no-reflector, is cordoned, or has a taint that announces its removal.
	Barred bool
}

// Pod is a Kubernetes Pod.
type Pod struct {
	api.Meta // without labels and annotations
	Node     string
	// HostNetwork: its addresses are the node's.
	HostNetwork bool
	// Finished: it has succeeded or failed, and no longer uses its addresses.
	Finished bool
	// Addresses are all in its status and its annotations, IPv4 unmapped. Reported: its status has any, which it
	// does a while after the assignment.
	Addresses []netip.Addr
	Reported  bool
}

// Uses reports whether an address is one of the pod's.
func (p *Pod) Uses(a netip.Addr) bool {
	for _, own := range p.Addresses {
		if own == a {
			return true
		}
	}
	return false
}

// shared interns a string that many objects have.
func shared(text string) string { return unique.Make(text).Value() }
