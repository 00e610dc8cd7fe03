package api

// CalicoNodeStatus requests the state of one node; the node writes it into the object's status. Clients of Calico write
// spec and status as one object, so the status is not a subresource.
//
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Updated",type=date,JSONPath=`.status.lastUpdated`
// +tortie:v3:column:name="Node",type=string,JSONPath=`.spec.node`
// +tortie:v3:column:name="Classes",type=string,JSONPath=`.spec.classes`
type CalicoNodeStatus struct {
	Meta   `json:"metadata"`
	Spec   CalicoNodeStatusSpec   `json:"spec"`
	Status CalicoNodeStatusStatus `json:"status"`
}

// CalicoNodeStatusSpec is the request.
type CalicoNodeStatusSpec struct {
	// Node is the name of the node.
	Node string `json:"node,omitempty"`
	// Classes are the requested parts: Agent, BGP and Routes.
	// +tortie:v3:schema=`{"items":{"enum":["Agent","BGP","Routes"]}}`
	Classes []string `json:"classes,omitempty"`
	// UpdatePeriodSeconds is the interval at which the node updates a changed status; 0 stops it. Absent means 10. The
	// nodes of a cluster together write at most some 10 statuses a second.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	UpdatePeriodSeconds *uint32 `json:"updatePeriodSeconds,omitempty"`
}

// The classes of a CalicoNodeStatus.
const (
	ClassAgent  = "Agent"
	ClassBGP    = "BGP"
	ClassRoutes = "Routes"
)

// CalicoNodeStatusStatus is the node's state. Only the node writes it.
type CalicoNodeStatusStatus struct {
	// LastUpdated is when the status last changed.
	// +kubebuilder:validation:Format=date-time
	// +nullable
	LastUpdated *string          `json:"lastUpdated,omitempty"`
	Agent       *NodeAgentStatus `json:"agent,omitempty"`
	BGP         *NodeBGPStatus   `json:"bgp,omitempty"`
	Routes      *NodeRouteStatus `json:"routes,omitempty"`
}

// NodeAgentStatus is the state of the BGP speakers: one for each family.
type NodeAgentStatus struct {
	BIRDV4 *NodeSpeaker `json:"birdV4,omitempty"`
	BIRDV6 *NodeSpeaker `json:"birdV6,omitempty"`
}

// NodeSpeaker is one BGP speaker.
type NodeSpeaker struct {
	// State is Ready or NotReady.
	State    string `json:"state,omitempty"`
	Version  string `json:"version,omitempty"`
	RouterID string `json:"routerID,omitempty"`
	// LastBootTime is when the agent started, LastReconfigurationTime when its sessions were last changed.
	LastBootTime            string `json:"lastBootTime,omitempty"`
	LastReconfigurationTime string `json:"lastReconfigurationTime,omitempty"`
}

// NodeBGPStatus are a node's sessions.
type NodeBGPStatus struct {
	NumberEstablishedV4    int        `json:"numberEstablishedV4"`
	NumberNotEstablishedV4 int        `json:"numberNotEstablishedV4"`
	NumberEstablishedV6    int        `json:"numberEstablishedV6"`
	NumberNotEstablishedV6 int        `json:"numberNotEstablishedV6"`
	PeersV4                []NodePeer `json:"peersV4,omitempty"`
	PeersV6                []NodePeer `json:"peersV6,omitempty"`
}

// NodePeer is one session.
type NodePeer struct {
	PeerIP string `json:"peerIP,omitempty"`
	// Type is NodeMesh, NodePeer or GlobalPeer.
	Type string `json:"type,omitempty"`
	// State is a state of RFC 4271.
	State string `json:"state,omitempty"`
	// Since is when the session was established, or lost.
	Since string `json:"since,omitempty"`
}

// NodeRouteStatus are the routes that a node has made, and the paths that it does not use.
type NodeRouteStatus struct {
	RoutesV4 []NodeRoute `json:"routesV4,omitempty"`
	RoutesV6 []NodeRoute `json:"routesV6,omitempty"`
}

// NodeRoute is one route or path.
type NodeRoute struct {
	// Type is FIB for a route in use, else RIB.
	Type        string        `json:"type,omitempty"`
	Destination string        `json:"destination,omitempty"`
	Gateway     string        `json:"gateway,omitempty"`
	Interface   string        `json:"interface,omitempty"`
	LearnedFrom NodeRouteFrom `json:"learnedFrom,omitempty"`
}

// NodeRouteFrom is the source of a route.
type NodeRouteFrom struct {
	// SourceType is Kernel, Static, Direct, NodeMesh or BGPPeer.
	SourceType string `json:"sourceType,omitempty"`
	PeerIP     string `json:"peerIP,omitempty"`
}

// ResourceType implements Resource.
func (*CalicoNodeStatus) ResourceType() Type { return custom("CalicoNodeStatus", "caliconodestatuses") }
