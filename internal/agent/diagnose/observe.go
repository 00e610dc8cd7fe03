package diagnose

import (
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/cniconf"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// Observations are the input of all checks. An error beside a value says why it could not be read.
type Observations struct {
	Time time.Time

	Agent    *nodestatus.Report // nil if it does not answer
	AgentErr error
	// Foreign: no agent runs on this machine, which is not judged: only the peers are that were named.
	Foreign bool

	Peers []Peer

	Links    []netlinkx.Link
	LinksErr error
	// Routes are those of the main table that are not the kernel's own.
	Routes    []netlinkx.Route
	RoutesErr error
	// Protocol marks the agent's routes.
	Protocol netlinkx.Protocol
	// Chains are all of nf_tables.
	Chains    []nft.Place
	ChainsErr error
	// Closings are the chains of the forward hook that drop what they do not let through.
	Closings    []nft.Closing
	ClosingsErr error

	// Sysctls are by their names with slashes; one that is missing does not exist, or could not be read.
	Sysctls map[string]string
	Kernel  Kernel

	// WrongPasswords is by how much the kernel's count of TCP segments with a wrong password has grown meanwhile.
	WrongPasswords uint64
	// WrongAO is the same of those that TCP-AO had it drop.
	WrongAO uint64

	Service Service
	// Claims are who says to have the node's addresses, and the peers'.
	Claims []Claims
	// Space is what is left of file systems.
	Space   []Space
	Cluster Cluster
	// PodNames are of addresses in denied connections, where the API server knows a pod.
	PodNames map[string]string

	Configs  CNIConfigs
	Managers Managers
}

// Peer is a peer and the results of its probes.
type Peer struct {
	Addr      netip.Addr
	Node      string // if known
	Session   string // the state of its BGP session; empty if there is none
	LastError string // the agent's reason why the session is down
	Port      uint16
	Password  bool // its session has one
	TCPAO     bool // its session is signed so
	TTLHops   int  // how far away it may be at most; 0: anywhere
	// Tunnelled: this node sends pods' packets to it in IPIP.
	Tunnelled bool
	// VTEP is its end of VXLAN tunnels; invalid if this node sends pods' packets to it otherwise.
	VTEP netip.Addr

	Probed bool // false if there was no time
	TCP    Probe
	Echo   Probe
	IPIP   Probe
	// VXLAN is an echo from this node's end of the tunnel to the other, UDP a packet to VXLAN's port outside of any
	// tunnel.
	VXLAN, UDP Probe
	// WantSize is how many bytes a full packet between the nodes has, of which Overhead are a tunnel's; GotSize is the
	// largest that was answered, 0 if none was tried.
	WantSize, GotSize, Overhead int

	// Way is the link by which this node reaches the peer.
	Way    string
	WayErr error
}

// Outcome is how a probe ended.
type Outcome string

// The outcomes. The zero value is a probe that was not made.
const (
	Answered   Outcome = "answered"
	Refused    Outcome = "refused"     // by the other end: nothing listens there, or its firewall rejects it
	Silent     Outcome = "silent"      // no answer in time
	NoWay      Outcome = "no way"      // no route, or the network says that the peer cannot be reached
	NoProtocol Outcome = "no protocol" // the peer's kernel does not know the protocol
	NotAllowed Outcome = "not allowed" // this host does not let the probe out
	Impossible Outcome = "impossible"  // the probe could not be made, which says nothing of the peer
	notAProbe  Outcome = ""
)

// Probe is the result of one probe of a peer.
type Probe struct {
	Outcome Outcome
	Detail  string // the error's text, or a remark on the answer
}

// Kernel has the features of the kernel.
type Kernel struct {
	IPIP, NFTables, MD5 Feature
}

// Feature is whether the kernel has something.
type Feature struct {
	Has bool
	// Loadable: it has not, and there is a module for it.
	Loadable bool
	Err      error // if it could not be found out
}

// CNIConfigs are the runtime's network configurations.
type CNIConfigs struct {
	Dir   string
	Files []cniconf.File // in the runtime's order: it uses the first
	Err   error
}

// Managers are the programs that configure a host's network.
type Managers struct {
	Err error // if this is not the host's file system
	// Sockets are those that such programs listen at, which a network namespace shows even then.
	Sockets []string
	// NetworkManager and Networkd list our links that they manage; Running says that they were seen at all.
	NetworkManager, Networkd Manager
	// KeepsForeignRoutes: networkd was told not to remove others' routes.
	KeepsForeignRoutes bool
}

// Manager is one of them.
type Manager struct {
	Running bool
	Manages []string
}

// established is a state of RFC 4271.
const established = "Established"
