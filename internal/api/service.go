package api

// Service is the part of a Kubernetes Service that this project reads.
type Service struct {
	Meta   `json:"metadata"`
	Spec   ServiceSpec   `json:"spec"`
	Status ServiceStatus `json:"status"`
}

// ServiceSpec is the part of a Service's spec that this project reads.
type ServiceSpec struct {
	// Type is ClusterIP, NodePort, LoadBalancer or ExternalName.
	Type string `json:"type,omitempty"`
	// ClusterIP is the first of ClusterIPs; None for a headless service.
	ClusterIP   string   `json:"clusterIP,omitempty"`
	ClusterIPs  []string `json:"clusterIPs,omitempty"`
	ExternalIPs []string `json:"externalIPs,omitempty"`
	// LoadBalancerIP is the requested address of a LoadBalancer; deprecated by Kubernetes, and still in use.
	LoadBalancerIP string `json:"loadBalancerIP,omitempty"`
	// LoadBalancerClass names the controller of a LoadBalancer; nil leaves it to the cluster's default.
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`
	// IPFamilies are IPv4, IPv6 or both, the primary one first.
	IPFamilies []string `json:"ipFamilies,omitempty"`
	// IPFamilyPolicy is SingleStack, PreferDualStack or RequireDualStack.
	IPFamilyPolicy string `json:"ipFamilyPolicy,omitempty"`
	// ExternalTrafficPolicy is Cluster or Local; empty for a service without external addresses.
	ExternalTrafficPolicy string `json:"externalTrafficPolicy,omitempty"`
}

// ServiceStatus is the part of a Service's status that this project reads.
type ServiceStatus struct {
	LoadBalancer LoadBalancerStatus `json:"loadBalancer"`
}

// LoadBalancerStatus holds the addresses of a LoadBalancer Service.
type LoadBalancerStatus struct {
	Ingress []LoadBalancerIngress `json:"ingress,omitempty"`
}

// LoadBalancerIngress is one address. Some load balancers have a name instead.
type LoadBalancerIngress struct {
	IP string `json:"ip,omitempty"`
}

// ResourceType implements Resource.
func (*Service) ResourceType() Type {
	return Type{Version: "v1", Kind: "Service", Plural: "services", Namespaced: true}
}

// The values of a Service's type and externalTrafficPolicy that addresses are announced by.
const (
	ServiceClusterIP    = "ClusterIP"
	ServiceNodePort     = "NodePort"
	ServiceLoadBalancer = "LoadBalancer"

	TrafficCluster = "Cluster"
	TrafficLocal   = "Local"

	PreferDualStack = "PreferDualStack"
)

// Calico's annotations of a Service, each a JSON list: of pools, by name or CIDR, and of addresses.
const (
	AnnotationServicePoolsV4   = "projectcalico.org/ipv4pools"
	AnnotationServicePoolsV6   = "projectcalico.org/ipv6pools"
	AnnotationServiceAddresses = "projectcalico.org/loadBalancerIPs"
)

// AddressAnnotations are the annotations by which a Service requests addresses.
var AddressAnnotations = []string{AnnotationServicePoolsV4, AnnotationServicePoolsV6, AnnotationServiceAddresses}

// LabelServiceName is the label of an EndpointSlice with the name of its Service.
const LabelServiceName = "kubernetes.io/service-name"

// LabelExcludeNode on a Node excludes it from load balancing: Calico does not announce service addresses from it.
const LabelExcludeNode = "node.kubernetes.io/exclude-from-external-load-balancers"

// EndpointSlice is the part of a Kubernetes EndpointSlice that this project reads.
type EndpointSlice struct {
	Meta        `json:"metadata"`
	AddressType string     `json:"addressType,omitempty"`
	Endpoints   []Endpoint `json:"endpoints,omitempty"`
}

// The address types of an EndpointSlice; others, such as FQDN, are of no use here.
const (
	AddressIPv4 = "IPv4"
	AddressIPv6 = "IPv6"
)

// Endpoint is one backend of a Service.
type Endpoint struct {
	NodeName   *string            `json:"nodeName,omitempty"`
	Conditions EndpointConditions `json:"conditions"`
}

// EndpointConditions are an endpoint's states. A missing Ready means true.
type EndpointConditions struct {
	Ready *bool `json:"ready,omitempty"`
}

// ResourceType implements Resource.
func (*EndpointSlice) ResourceType() Type {
	return Type{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice", Plural: "endpointslices", Namespaced: true}
}
