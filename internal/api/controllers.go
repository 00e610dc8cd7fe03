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
	// Keys are the fields without effect.
	Keys Keys `json:"-"`
	// LogSeverityScreen is the log level: Debug, Info, Warning, Error or Fatal.
	// +tortie:v3:schema=`{"enum":["None","Debug","Info","Warning","Error","Fatal","Panic"]}`
	LogSeverityScreen string `json:"logSeverityScreen,omitempty"`
	// HealthChecks Disabled turns the program's health checks off.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	// +tortie:v3:schema=`{"default":"Enabled"}`
	HealthChecks string `json:"healthChecks,omitempty"`
	// EtcdV3CompactionPeriod is the interval of compactions of an etcd datastore, such as 10m; 0 is never.
	EtcdV3CompactionPeriod string `json:"etcdV3CompactionPeriod,omitempty"`
	// PrometheusMetricsPort is the TCP port of the metrics; 0 turns them off.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +tortie:v3:schema=`{"default":9094}`
	PrometheusMetricsPort *int `json:"prometheusMetricsPort,omitempty"`
	// Controllers are the controllers that run.
	Controllers ControllersConfig `json:"controllers"`
}

// ControllersConfig has the settings of each controller; one that is absent does not run.
type ControllersConfig struct {
	// Node collects the remains of nodes and pods.
	Node *NodeControllerConfig `json:"node,omitempty"`
	// LoadBalancer gives addresses to Services; absent reads as its defaults.
	LoadBalancer *LoadBalancerControllerConfig `json:"loadBalancer,omitempty"`
}

// LoadBalancerControllerConfig has the settings of the controller that gives addresses to Services.
type LoadBalancerControllerConfig struct {
	// AssignIPs is AllServices, the default, or RequestedServicesOnly: Services that request an address by class,
	// annotation or loadBalancerIP.
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
	// ReconcilerPeriod is the interval of complete checks, even if nothing has changed: a time such as 5m.
	ReconcilerPeriod string `json:"reconcilerPeriod,omitempty"`
	// SyncLabels copies Kubernetes' labels of nodes to Calico's, if etcd is the datastore.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	SyncLabels string `json:"syncLabels,omitempty"`
	// LeakGracePeriod is how long an address must look unused before it is freed: a time such as 15m; 0 is never.
	LeakGracePeriod string `json:"leakGracePeriod,omitempty"`
	// HostEndpoint makes HostEndpoints of nodes.
	HostEndpoint *AutoHostEndpointConfig `json:"hostEndpoint,omitempty"`
}

// AutoHostEndpointConfig configures the HostEndpoints that the node controller creates, keeps and removes.
type AutoHostEndpointConfig struct {
	// AutoCreate enables them. Disabled, the default, removes HostEndpoints that the controller created.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	AutoCreate string `json:"autoCreate,omitempty"`
	// CreateDefaultHostEndpoint creates a HostEndpoint of all interfaces for each node; the default is Enabled.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	// +tortie:v3:schema=`{"enum":null}`
	CreateDefaultHostEndpoint string `json:"createDefaultHostEndpoint,omitempty"`
	// Templates create more, for the interfaces with certain addresses.
	Templates []HostEndpointTemplate `json:"templates,omitempty"`
}

// HostEndpointTemplate creates a HostEndpoint for each node that it selects.
type HostEndpointTemplate struct {
	// GenerateName follows the node's name in the name of the HostEndpoint.
	// +kubebuilder:validation:MaxLength=253
	GenerateName string `json:"generateName,omitempty"`
	// NodeSelector selects nodes by their labels.
	NodeSelector string `json:"nodeSelector,omitempty"`
	// InterfaceCIDRs are ranges; the node's addresses in them become the expectedIPs. A node without such an address gets
	// no HostEndpoint.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	InterfaceCIDRs []string `json:"interfaceCIDRs,omitempty"`
	// InterfacePattern is a regular expression for names of interfaces. It is refused: nodes do not publish these names.
	InterfacePattern string `json:"interfacePattern,omitempty"`
	// Labels are added to the node's labels, and override them.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are the annotations of the HostEndpoint.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// KubeControllersConfigurationStatus holds the settings in force.
//
// +kubebuilder:pruning:PreserveUnknownFields
type KubeControllersConfigurationStatus struct {
	// RunningConfig is the configuration in force: the spec, overridden by the environment.
	RunningConfig KubeControllersConfigurationSpec `json:"runningConfig,omitempty"`
	// EnvironmentVars are the environment variables that were set.
	EnvironmentVars map[string]string `json:"environmentVars,omitempty"`
}

// ResourceType implements Resource.
func (*KubeControllersConfiguration) ResourceType() Type {
	return custom("KubeControllersConfiguration", "kubecontrollersconfigurations")
}
