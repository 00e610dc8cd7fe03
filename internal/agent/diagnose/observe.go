package diagnose

import (
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/cniconf"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// Observations are the input of all checks. An error beside a value is why the value could not be read.
type Observations struct {
	Time time.Time

	Agent    *nodestatus.Report // nil if it does not answer
	AgentErr error
	// Foreign: no agent runs on this machine, so only the named peers are checked.
	Foreign bool

	Peers []Peer

	Links    []netlinkx.Link
	LinksErr error
	// Routes are the routes of the main table, except the kernel's own.
	Routes    []netlinkx.Route
	RoutesErr error
	// Protocol marks the agent's routes.
	Protocol netlinkx.Protocol
	// Chains are all chains of nf_tables.
	Chains    []nft.Place
	ChainsErr error
	// Closings are the chains of the forward hook that drop packets by default.
	Closings    []nft.Closing
	ClosingsErr error

	// Sysctls has values by names with slashes; a missing one does not exist, or could not be read.
	Sysctls map[string]string
	Kernel  Kernel

	// WrongPasswords counts the TCP segments with a wrong password that the kernel received meanwhile.
	WrongPasswords uint64
	// WrongAO counts the segments that it dropped by TCP-AO meanwhile.
	WrongAO uint64

	Service Service
	// Claims are the hosts that claim the node's addresses, or the peers'.
	Claims []Claims
	// Space is the free space of file systems.
	Space   []Space
	Cluster Cluster
	// PodNames has the pods by the addresses in denied connections, as far as the API server knows them.
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
	Password  bool // its session has a password
	TCPAO     bool // TCP-AO signs its session
	TTLHops   int  // most hops to it; 0: any number
	// Tunnelled: this node sends pods' packets to it in IPIP.
	Tunnelled bool
	// VTEP is its VXLAN tunnel endpoint; invalid if this node does not send pods' packets to it in VXLAN.
	VTEP netip.Addr

	Probed bool // false if there was no time
	TCP    Probe
	Echo   Probe
	IPIP   Probe
	// VXLAN is an echo from this node's VTEP to the peer's, UDP a packet to VXLAN's port outside of any tunnel.
	VXLAN, UDP Probe
	// WantSize is the size of a full packet between the nodes in bytes, of which Overhead are a tunnel's. GotSize is the
	// largest packet that was answered, 0 if none was tried.
	WantSize, GotSize, Overhead int

	// Way is the link through which this node reaches the peer.
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
	NoWay      Outcome = "no way"      // no route, or the network reports that the peer is unreachable
	NoProtocol Outcome = "no protocol" // the peer's kernel does not know the protocol
	NotAllowed Outcome = "not allowed" // this host does not let the probe out
	Impossible Outcome = "impossible"  // the probe could not be made; nothing is known of the peer
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

// Feature is whether the kernel has a feature.
type Feature struct {
	Has bool
	// Loadable: the kernel lacks it, but has a module for it.
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
	// Sockets are the sockets of such programs, which a network namespace shows even then.
	Sockets []string
	// NetworkManager and Networkd list our links that they manage.
	NetworkManager, Networkd Manager
	// KeepsForeignRoutes: networkd is configured to leave other programs' routes alone.
	KeepsForeignRoutes bool
}

// Manager is one such program; Running: it has left state files.
type Manager struct {
	Running bool
	Manages []string
}

// established is a state of RFC 4271.
const established = "Established"
