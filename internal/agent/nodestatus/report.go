package nodestatus

import "time"

// Report is the answer of /status. Its names are stable: a version adds to them and takes none away. The tag help is
// the documentation of a field.
type Report struct {
	Node    string    `json:"node" help:"Name of the node."`
	Version string    `json:"version" help:"Version of the agent."`
	Time    time.Time `json:"time" help:"When this was said: ages are counted from here."`
	Started time.Time `json:"started" help:"When the agent started."`
	Ready   bool      `json:"ready" help:"Whether one pass has succeeded: the dataplane stands. Later trouble, such as a dead peer, does not undo it."`

	LastPass        time.Time `json:"lastPass" help:"When the agent last compared this node with what it should be; before the first time, when it started."`
	LastPassSeconds float64   `json:"lastPassSeconds" help:"How long that took."`
	LastError       string    `json:"lastError,omitempty" help:"Why the last pass failed, a line for each cause."`
	Problems        []string  `json:"problems,omitempty" help:"Objects in the API and paths from BGP that the agent cannot use, and why."`

	ProblemReasons map[string]string `json:"problemReasons,omitempty" help:"The reasons of the Events about these, by their texts."`

	FieldsWithoutEffect []FieldsWithoutEffect `json:"fieldsWithoutEffect,omitempty" help:"Configurations for all nodes or for this one with fields of Calico's that have no effect here."`

	Address        string      `json:"address,omitempty" help:"The node's IPv4 address with the prefix length of its subnet."`
	AddressSource  string      `json:"addressSource,omitempty" help:"Why this address."`
	Interface      string      `json:"interface,omitempty" help:"Interface that has the address."`
	Address6       string      `json:"address6,omitempty" help:"The node's IPv6 address with the prefix length of its subnet."`
	Address6Source string      `json:"address6Source,omitempty" help:"Why this address."`
	Interface6     string      `json:"interface6,omitempty" help:"Interface that has the address."`
	ForwardsIPv6   bool        `json:"forwardsIPv6" help:"Whether the host must forward IPv6: it has an address of it and there is a pool, or it has blocks or pods of it."`
	Candidates     []Candidate `json:"candidates,omitempty" help:"All addresses that the host has, and what was made of them."`

	ASN      uint32   `json:"asn,omitempty" help:"AS number of this node."`
	BGPPort  uint16   `json:"bgpPort,omitempty" help:"TCP port of BGP on this node."`
	RouterID string   `json:"routerID,omitempty" help:"BGP's router ID."`
	Tunnel   *Tunnel  `json:"tunnel,omitempty" help:"The first of the tunnels, if a pool encapsulates."`
	Tunnels  []Tunnel `json:"tunnels,omitempty" help:"All of them: IPIP, VXLAN, VXLAN of IPv6, WireGuard, WireGuard of IPv6."`
	PodMTU   int      `json:"podMTU,omitempty" help:"MTU of pods' interfaces."`

	Reflection *Reflection `json:"reflection,omitempty" help:"This node's part in route reflection, if it has one."`

	EnforcesPolicies bool    `json:"enforcesPolicies" help:"Whether this agent has brought NetworkPolicies into force since it started."`
	Policy           *Policy `json:"policy,omitempty" help:"What of policies is in force, or why not."`

	Pools     []Pool      `json:"pools" help:"The IPPools."`
	Blocks    []string    `json:"blocks" help:"The node's own confirmed blocks."`
	Peers     []Peer      `json:"peers" help:"BGP sessions that this node should have."`
	Announced []Announced `json:"announced" help:"Prefixes that this node announces."`
	PassedOn  []Announced `json:"passedOn,omitempty" help:"Prefixes that other nodes or routers announce and this one passes on to a peer at least."`
	Services  *Services   `json:"services,omitempty" help:"What is announced for services, if that is asked for."`
	Learned   []Path      `json:"learned" help:"Prefixes that BGP has learned and that may be used."`
	Routes    Routes      `json:"routes" help:"Routes to other nodes' blocks, of the own blocks, and by way of routers."`

	Paths  *Paths `json:"paths,omitempty" help:"Whether other nodes forward IPv4 packets of this node's pods, by probes that they send back."`
	Paths6 *Paths `json:"paths6,omitempty" help:"The same for IPv6."`

	Facts   *Facts  `json:"facts,omitempty" help:"What the plugins were told last."`
	Journal Journal `json:"journal" help:"What the plugins have left to the agent."`
}

// Reason notes the reason of the Event about a problem.
func (r *Report) Reason(problem, reason string) {
	if r.ProblemReasons == nil {
		r.ProblemReasons = map[string]string{}
	}
	r.ProblemReasons[problem] = reason
}

// FieldsWithoutEffect has such fields of one configuration.
type FieldsWithoutEffect struct {
	Kind   string   `json:"kind" help:"Its kind: FelixConfiguration or BGPConfiguration."`
	Name   string   `json:"name" help:"Its name."`
	Fields []string `json:"fields" help:"Its fields without effect."`
}

// Paths describes the paths of pods' packets of one family to other nodes.
type Paths struct {
	Up             int          `json:"up" help:"How many nodes answered their last probes."`
	Down           int          `json:"down" help:"How many nodes have answered, and do not now."`
	Unknown        int          `json:"unknown,omitempty" help:"How many nodes have not answered yet: nothing is concluded from that."`
	Unprobed       int          `json:"unprobed,omitempty" help:"How many nodes cannot be probed."`
	UnprobedReason string       `json:"unprobedReason,omitempty" help:"Why, of the first of them."`
	Missed         []MissedPath `json:"missed,omitempty" help:"The nodes that do not answer now, 16 at most."`
}

// MissedPath is a path that was up and is down.
type MissedPath struct {
	Node    string    `json:"node" help:"The other node."`
	Address string    `json:"address" help:"Its address."`
	Kind    string    `json:"kind" help:"How packets of pods travel there: VXLAN, IPIP or no encapsulation."`
	Since   time.Time `json:"since" help:"When the first probe was lost."`
}

// Policy is the state of the agent's enforcement of policies.
type Policy struct {
	Mode    string `json:"mode" help:"TORTIE_POLICY: off, on or auto."`
	Reason  string `json:"reason,omitempty" help:"Why policies are not enforced: off, felix, cilium, antrea, starting (what an earlier agent left is in force) or failing."`
	Message string `json:"message,omitempty" help:"The same in words."`
	// Policed and Open are pods of this node.
	Policed     int        `json:"policedPods" help:"Pods of this node that a policy selects."`
	Open        int        `json:"openPods" help:"Pods of this node that no policy selects."`
	Policies    int        `json:"policies" help:"Policies of the cluster."`
	Programs    int        `json:"programs" help:"Different lists of rules that pods of this node have."`
	Members     int        `json:"members" help:"Addresses of pods that the rules name."`
	Applied     *time.Time `json:"applied,omitempty" help:"When the kernel was last changed or compared."`
	Seconds     float64    `json:"seconds,omitempty" help:"How long that took."`
	Waiting     *time.Time `json:"waiting,omitempty" help:"Since when a change is not in force; absent if all are."`
	EndedFlows  uint64     `json:"endedConnections,omitempty" help:"Established connections that were ended as policies forbid them."`
	Connections string     `json:"connections,omitempty" help:"What becomes of established connections that a changed policy forbids: end or keep."`
	Denials     []Denial   `json:"recentDenials,omitempty" help:"Connections of which policies have denied the most packets in the last 5 minutes, at most 5."`
}

// Denial is a connection that policies deny.
type Denial struct {
	By          string `json:"by" help:"Direction and policy."`
	Source      string `json:"source" help:"Address that the packets are from."`
	Destination string `json:"destination" help:"Address that they are to."`
	Protocol    uint8  `json:"protocol" help:"Number of the IP protocol."`
	Port        uint16 `json:"port,omitempty" help:"Port of the destination."`
	Packets     int    `json:"packets" help:"How many the kernel has told of, which is a sample: up to five in a second for each policy and direction."`
}

// Candidate is an address of the host.
type Candidate struct {
	Address   string `json:"address" help:"The address with the prefix length of its subnet."`
	Interface string `json:"interface" help:"Interface that has it."`
	Chosen    bool   `json:"chosen" help:"Whether it is the node's."`
	Reason    string `json:"reason" help:"Why, or why not."`
}

// Tunnel is one device that encapsulates.
type Tunnel struct {
	Kind    string `json:"kind,omitempty" help:"IPIP, VXLAN or WireGuard."`
	Device  string `json:"device" help:"Its name."`
	Address string `json:"address,omitempty" help:"Its address; none if no pool to assign from selects this node."`
	MTU     int    `json:"mtu" help:"Its MTU."`
	Port    int    `json:"port,omitempty" help:"Its UDP port, of VXLAN and WireGuard."`
	VNI     int    `json:"vni,omitempty" help:"Its network identifier, of VXLAN."`
	Ends    int    `json:"ends,omitempty" help:"How many other ends it knows, of VXLAN; how many nodes are sent encrypted packets, of WireGuard."`

	Unencrypted      int      `json:"unencrypted,omitempty" help:"How many nodes are not, of WireGuard: they have no key or do not answer. Their pods are reached in the clear, or with TORTIE_REQUIRE_ENCRYPTION not at all."`
	UnencryptedNodes []string `json:"unencryptedNodes,omitempty" help:"The first of them by name."`

	KeySince    time.Time `json:"keySince,omitzero" help:"When it got its key, of WireGuard, as far as the agent knows."`
	KeyChanging bool      `json:"keyChanging,omitempty" help:"Whether that key is being changed."`
	KeyWaitsFor []string  `json:"keyWaitsFor,omitempty" help:"The first nodes by name that the change waits for."`
}

// Reflection is a node's part in route reflection.
type Reflection struct {
	Role       string   `json:"role" help:"reflector or client, of the reflectors that kube-controllers has made; configured, if an operator has made it a reflector."`
	ClusterID  string   `json:"clusterID,omitempty" help:"Under which it reflects."`
	Reflectors []string `json:"reflectors,omitempty" help:"Nodes that kube-controllers has made reflectors, as far as this node has sessions with them."`
}

// Announced is one prefix that this node announces.
type Announced struct {
	Prefix      string `json:"prefix" help:"The prefix."`
	Origin      string `json:"origin" help:"own block, borrowed address, aggregate, service range, service or, if it is passed on, learned."`
	Communities string `json:"communities,omitempty" help:"Communities that BGPConfiguration gives it."`
}

// Services has the announcements for services.
type Services struct {
	Known    bool     `json:"known" help:"Whether services and their endpoints have been read. What was known stays while the API server is away."`
	Excluded bool     `json:"excluded" help:"Whether the node's label keeps it out of load balancing: it announces nothing."`
	Ranges   []string `json:"ranges" help:"Ranges that BGPConfiguration names. Nothing that is learned inside of them becomes a route."`
	Prefixes int      `json:"prefixes" help:"How many prefixes are announced: ranges and single addresses."`
}

// Pool is an IPPool, mostly with the fields of its spec.
type Pool struct {
	Name             string `json:"name" help:"Name."`
	CIDR             string `json:"cidr" help:"Range."`
	BlockSize        int    `json:"blockSize" help:"Prefix length of its blocks."`
	IPIPMode         string `json:"ipipMode" help:"Always, CrossSubnet or Never."`
	VXLANMode        string `json:"vxlanMode,omitempty" help:"Always, CrossSubnet or Never."`
	NATOutgoing      bool   `json:"natOutgoing" help:"Whether packets that leave the pools are masqueraded."`
	Disabled         bool   `json:"disabled" help:"Whether nothing new is assigned from it."`
	Reason           string `json:"reason,omitempty" help:"Why that is so, in a word: that of the condition Allocatable that it should have."`
	Why              string `json:"why,omitempty" help:"Why that is so, for people."`
	DisableBGPExport bool   `json:"disableBGPExport" help:"Whether its blocks are kept out of BGP."`
	SelectsNode      bool   `json:"selectsNode" help:"Whether its nodeSelector selects this node."`
}

// Peer is one BGP session.
type Peer struct {
	Address    string    `json:"address" help:"The other end."`
	Node       string    `json:"node,omitempty" help:"Name of the node that has this address."`
	ASN        uint32    `json:"asn" help:"Its AS number."`
	From       string    `json:"from,omitempty" help:"This end's address; absent where the kernel will choose it."`
	Port       uint16    `json:"port,omitempty" help:"Its TCP port."`
	Source     string    `json:"source" help:"Why the session is configured."`
	Kind       string    `json:"kind" help:"mesh, reflector (BGPPeer tortie-reflectors), node (a BGPPeer of some nodes) or global (a BGPPeer of all)."`
	Object     string    `json:"object,omitempty" help:"Name of the BGPPeer that it is there for."`
	LocalASN   uint32    `json:"localASN,omitempty" help:"AS number that this node is in for the peer, if that is not its own."`
	Client     bool      `json:"client,omitempty" help:"Whether this node reflects routes for the peer."`
	Password   bool      `json:"password,omitempty" help:"Whether the session has a password."`
	TCPAO      bool      `json:"tcpAO,omitempty" help:"Whether TCP-AO signs the session."`
	OldKeys    string    `json:"oldTCPAOKeys,omitempty" help:"TCP-AO keys, as SEND/RECEIVE, that were removed for more than a minute and that the peer goes on using."`
	WrongKeys  string    `json:"wrongTCPAOKeys,omitempty" help:"TCP-AO keys, as SEND/RECEIVE, whose ID segments from the peer's address have had in the last 5 minutes while another secret or algorithm has signed them; absent while the session is up."`
	TTLHops    int       `json:"ttlHops,omitempty" help:"How many hops away the peer may be at most (BGPPeer's ttlSecurity); 0 means any."`
	Passive    bool      `json:"passive" help:"Whether the other end is the one to connect."`
	State      string    `json:"state" help:"Idle, Active, OpenSent, OpenConfirm or Established."`
	Since      time.Time `json:"since" help:"When the session was established or, if it is not, when it was lost or first configured."`
	Restarting bool      `json:"restarting,omitempty" help:"Whether the session is lost and the peer's paths are kept, as it asked for."`
	Received   int       `json:"received" help:"Prefixes that it has announced."`
	Sent       int       `json:"sent" help:"Prefixes that were announced to it."`
	Refused    int       `json:"refused" help:"Prefixes that it has announced and that are not taken, by BGP's rules or a BGPFilter."`
	Refusals   []Reason  `json:"refusals,omitempty" help:"Why."`
	EndOfTable bool      `json:"endOfTable" help:"Whether it has sent the whole of its table in this session, and said so."`
	Supports   string    `json:"supports,omitempty" help:"What it has offered in this session, or the last one."`
	LastError  string    `json:"lastError,omitempty" help:"Why the session is not, or last was not, established."`
	ErrorSince time.Time `json:"errorSince,omitzero" help:"When that was first so, without a different error or a session in between."`
	ErrorAt    time.Time `json:"errorAt,omitzero" help:"When that was last so."`
	HeldUntil  time.Time `json:"heldUntil,omitzero" help:"Until when the session is kept closed for what the peer did, as lastError says."`
	NextTry    time.Time `json:"nextTry,omitzero" help:"When the next connection is tried or, where the other end is the one to connect, let in; absent: now, or there is a session."`

	BFD *BFD `json:"bfd,omitempty" help:"The BFD session that watches the peer; absent: there is to be none."`

	Sessions         uint64 `json:"sessions" help:"How often the session was established since it is configured."`
	MessagesReceived uint64 `json:"messagesReceived" help:"BGP messages that it has sent since it is configured."`
	MessagesSent     uint64 `json:"messagesSent" help:"BGP messages that were sent to it."`
	FlawedMessages   uint64 `json:"flawedMessages,omitempty" help:"Of the received ones, those that were malformed and did not end the session: what they announce is not taken, or attributes of it are left out."`
	LastFlaw         string `json:"lastFlaw,omitempty" help:"What was wrong with the last of these."`

	Ends []End `json:"ends,omitempty" help:"How its last sessions have ended, or why they did not come up, the latest first; at most 20. They survive the agent and the node's restart."`
}

// End is how a BGP session has ended, or why it did not come up.
type End struct {
	At       time.Time `json:"at" help:"When it ended, or did not come up last; after an end of this node's agent, when the next one started."`
	Since    time.Time `json:"since,omitzero" help:"Since when it was up; absent: it did not come up."`
	Times    int       `json:"times,omitempty" help:"How often it did not come up for this reason since the last session; absent: it was up."`
	First    time.Time `json:"first,omitzero" help:"When that was first so."`
	By       string    `json:"by,omitempty" help:"What has ended it: peer, this node, hold timer, connection (it was lost) or agent (this node's agent, or the node, has ended); absent: there was no connection."`
	Reason   string    `json:"reason" help:"Why."`
	Sent     string    `json:"sent,omitempty" help:"The NOTIFICATION that this node has sent."`
	Received string    `json:"received,omitempty" help:"The NOTIFICATION that the peer has sent, with its shutdown communication (RFC 9003)."`
	Error    string    `json:"error,omitempty" help:"The error of the TCP connection."`
}

// BFD is the state of the BFD session that watches a peer.
type BFD struct {
	State      string    `json:"state" help:"Down, Init or Up."`
	Since      time.Time `json:"since" help:"Since when."`
	Detection  float64   `json:"detectionSeconds" help:"For how long the peer may be silent."`
	Heard      bool      `json:"heard" help:"Whether its packets come."`
	Diag       string    `json:"diagnostic,omitempty" help:"Why this end went down last, in RFC 5880's words; absent while it is up, or was never."`
	RemoteDiag string    `json:"remoteDiagnostic,omitempty" help:"The peer's word for it."`
	Fault      string    `json:"fault,omitempty" help:"Why packets of it are dropped, or none can be sent."`
}

// Reason is why prefixes of a peer are not taken.
type Reason struct {
	Reason   string `json:"reason" help:"The reason."`
	Prefixes int    `json:"prefixes" help:"How many they are."`
	Example  string `json:"example,omitempty" help:"One of them."`
}

// Path is one learned prefix.
type Path struct {
	Prefix      string `json:"prefix" help:"The prefix."`
	NextHop     string `json:"nextHop" help:"Where it leads."`
	Peer        string `json:"peer" help:"The peer that announced it."`
	Stale       bool   `json:"stale,omitempty" help:"Whether that peer is restarting and has not confirmed it yet."`
	ASPath      string `json:"asPath,omitempty" help:"AS numbers from the peer to the origin; empty inside one AS."`
	Communities string `json:"communities,omitempty" help:"Its communities, the large ones last."`
	LocalPref   uint32 `json:"localPref,omitempty" help:"Its preference inside the AS."`
	MED         uint32 `json:"med,omitempty" help:"Its multi-exit discriminator."`
}

// Routes are the agent's routes in the kernel, as the last pass left them.
type Routes struct {
	Desired    int  `json:"desired" help:"How many this node should have."`
	Programmed int  `json:"programmed" help:"How many of these the last pass found or made right in the kernel; if less, lastError says why."`
	Held       int  `json:"held" help:"How many of an earlier agent are kept although no peer has announced them yet."`
	Starting   bool `json:"starting" help:"Whether nothing is removed yet, as BGP may not have told everything."`
	Refused    int  `json:"refused" help:"How many learned prefixes must not become routes."`

	List          []Route   `json:"list" help:"The desired routes."`
	Refusals      []Refusal `json:"refusals" help:"The refused prefixes."`
	LeftToNetwork []Refusal `json:"leftToNetwork" help:"Prefixes that need a route in the network between the nodes, not here."`
}

// Route is one desired route.
type Route struct {
	Destination string   `json:"destination" help:"Destination."`
	Type        string   `json:"type" help:"unicast, or unreachable for an own block or an aggregate: the pods' routes are longer and win."`
	Via         string   `json:"via,omitempty" help:"Next hop: the address of the node that it leads to."`
	Device      string   `json:"device,omitempty" help:"Output interface."`
	Node        string   `json:"node,omitempty" help:"Name of the node that has the next hop's address."`
	Source      string   `json:"source" help:"own block, aggregate, BGP, static (BGPPeer's reachableBy), or affinity: of a block whose owner BGP has no path to, or whose pool uses VXLAN."`
	Peer        string   `json:"peer,omitempty" help:"The BGP peer that announced it."`
	Peers       []string `json:"peers,omitempty" help:"All peers whose paths it follows, if several: it has several next hops."`
	Metric      int      `json:"metric,omitempty" help:"Its metric in the kernel."`
	Encap       string   `json:"encapsulation,omitempty" help:"IPIP, VXLAN or WireGuard, if its packets travel so."`
	ASPath      string   `json:"asPath,omitempty" help:"Of the path that it follows: AS numbers from the peer to the origin."`
	Communities string   `json:"communities,omitempty" help:"Of the path that it follows."`
}

// Refusal is a prefix without a route here, and why.
type Refusal struct {
	Prefix string `json:"prefix" help:"The prefix."`
	Via    string `json:"via" help:"Its next hop."`
	Peer   string `json:"peer,omitempty" help:"The BGP peer that announced it."`
	Reason string `json:"reason" help:"Why."`
}

// Facts summarizes the file of facts.
type Facts struct {
	Written        time.Time `json:"written" help:"Until when they were known to hold."`
	Usable         bool      `json:"usable" help:"Whether that is recent enough for the plugins; if not, they ask the API server."`
	AgentReady     bool      `json:"agentReady" help:"What they say of ready."`
	DatastoreReady bool      `json:"datastoreReady" help:"Whether the datastore is not locked."`
	Bytes          int       `json:"bytes" help:"Size of the file."`
	Pools          int       `json:"pools" help:"How many IPPools they hold."`
	Reservations   int       `json:"reservations" help:"How many IPReservations."`
	Affinities     int       `json:"affinities" help:"How many BlockAffinities of this node."`
	Namespaces     int       `json:"namespaces" help:"How many Namespaces."`
}

// Journal is the state of the journal.
type Journal struct {
	Entries   int    `json:"entries" help:"Containers whose addresses are still to be released."`
	LastError string `json:"lastError,omitempty" help:"Why the last try left some."`
}
