package api

// KubeControllersConfiguration is the object "default" with the settings of the controllers.
type KubeControllersConfiguration struct {
	Meta   `json:"metadata"`
	Spec   KubeControllersConfigurationSpec    `json:"spec"`
	Status *KubeControllersConfigurationStatus `json:"status,omitempty"`
}

// KubeControllersConfigurationSpec is the desired state of a KubeControllersConfiguration.
//
// Calico's other fields are kept, without effect.
type KubeControllersConfigurationSpec struct {
	// Keys are those without effect.
	Keys Keys `json:"-"`
	// LogSeverityScreen is the log level: Debug, Info, Warning, Error or Fatal.
	// +tortie:v3:schema=`{"enum":["None","Debug","Info","Warning","Error","Fatal","Panic"]}`
	LogSeverityScreen string `json:"logSeverityScreen,omitempty"`
	// HealthChecks turns the program's health checks off by Disabled.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	// +tortie:v3:schema=`{"default":"Enabled"}`
	HealthChecks string `json:"healthChecks,omitempty"`
	// EtcdV3CompactionPeriod is how often etcd is compacted, if it is the datastore: a time such as 10m; 0 is never.
	EtcdV3CompactionPeriod string `json:"etcdV3CompactionPeriod,omitempty"`
	// PrometheusMetricsPort is where metrics are served; 0 is nowhere.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +tortie:v3:schema=`{"default":9094}`
	PrometheusMetricsPort *int `json:"prometheusMetricsPort,omitempty"`
	// Controllers are those that run.
	Controllers ControllersConfig `json:"controllers"`
}

// ControllersConfig has the settings of each controller; one that is absent does not run.
type ControllersConfig struct {
	// Node collects what nodes and pods leave behind.
	Node *NodeControllerConfig `json:"node,omitempty"`
	// LoadBalancer gives addresses to Services; absent reads as its defaults.
	LoadBalancer *LoadBalancerControllerConfig `json:"loadBalancer,omitempty"`
}

// LoadBalancerControllerConfig has the settings of the controller that gives addresses to Services.
type LoadBalancerControllerConfig struct {
	// AssignIPs is AllServices, the default, or RequestedServicesOnly: those that ask for it by class, annotation or
	// loadBalancerIP.
	// +kubebuilder:validation:Enum=AllServices;RequestedServicesOnly
	// +tortie:v3:schema=`{"default":"AllServices"}`
	AssignIPs string `json:"assignIPs,omitempty"`
}

// The values of AssignIPs.
const (
	AllServices           = "AllServices"
	RequestedServicesOnly = "RequestedServicesOnly"
)

// NodeControllerConfig has the settings of the node controller.
type NodeControllerConfig struct {
	// ReconcilerPeriod is how often everything is looked at although nothing has changed: a time such as 5m.
	ReconcilerPeriod string `json:"reconcilerPeriod,omitempty"`
	// SyncLabels copies Kubernetes' labels of nodes to Calico's, if etcd is the datastore.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	SyncLabels string `json:"syncLabels,omitempty"`
	// LeakGracePeriod is how long an address must look unused before it is freed: a time such as 15m; 0 is never.
	LeakGracePeriod string `json:"leakGracePeriod,omitempty"`
	// HostEndpoint makes HostEndpoints of nodes.
	HostEndpoint *AutoHostEndpointConfig `json:"hostEndpoint,omitempty"`
}

// AutoHostEndpointConfig says which HostEndpoints the node controller makes, keeps and removes.
type AutoHostEndpointConfig struct {
	// AutoCreate makes them. Disabled, the default, removes those that it made.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	AutoCreate string `json:"autoCreate,omitempty"`
	// CreateDefaultHostEndpoint makes one for each node, of all its interfaces; the default is Enabled.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	// +tortie:v3:schema=`{"enum":null}`
	CreateDefaultHostEndpoint string `json:"createDefaultHostEndpoint,omitempty"`
	// Templates make more, of the interfaces with certain addresses.
	Templates []HostEndpointTemplate `json:"templates,omitempty"`
}

// HostEndpointTemplate makes a HostEndpoint of each node that it selects.
type HostEndpointTemplate struct {
	// GenerateName follows the node's name in the HostEndpoint's.
	// +kubebuilder:validation:MaxLength=253
	GenerateName string `json:"generateName,omitempty"`
	// NodeSelector selects nodes by their labels.
	NodeSelector string `json:"nodeSelector,omitempty"`
	// InterfaceCIDRs are the ranges of which a node's addresses are expected; a node without such an address gets no
	// HostEndpoint.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	InterfaceCIDRs []string `json:"interfaceCIDRs,omitempty"`
	// InterfacePattern is a regular expression for names of interfaces. It is not provided: nodes do not tell which they
	// have.
	InterfacePattern string `json:"interfacePattern,omitempty"`
	// Labels are added to those of the node, and precede them.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are those of the HostEndpoint.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// KubeControllersConfigurationStatus is what the controllers say of their settings.
//
// +kubebuilder:pruning:PreserveUnknownFields
type KubeControllersConfigurationStatus struct {
	// RunningConfig is what is in force: the spec, the environment over it.
	RunningConfig KubeControllersConfigurationSpec `json:"runningConfig,omitempty"`
	// EnvironmentVars are the variables that were set.
	EnvironmentVars map[string]string `json:"environmentVars,omitempty"`
}

// ResourceType implements Resource.
func (*KubeControllersConfiguration) ResourceType() Type {
	return custom("KubeControllersConfiguration", "kubecontrollersconfigurations")
}
