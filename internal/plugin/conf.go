package plugin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// Files that the agent and the installer write for the plugins, and the host's lock: Calico's paths.
const (
	defaultMTUFile    = "/var/lib/calico/mtu"
	defaultLockFile   = "/var/run/calico/ipam.lock"
	defaultKubeconfig = "/etc/cni/net.d/calico-kubeconfig"
)

// unversioned is the CNI version of a configuration that names none, as in Calico.
const unversioned = "0.2.0"

// The values of datastore_type.
const (
	datastoreKubernetes = "kubernetes"
	datastoreEtcd       = "etcdv3"
)

// The values of device_type.
const (
	deviceVeth   = "veth"
	deviceNetkit = "netkit"
)

// netConf is a plugin's section of the network configuration. Unknown keys are ignored, as by Calico; the installer and
// node diagnose name them (cniconf.Keys).
//
// The tags are the source of the defaults and of docs/: default, help, and for a deprecated key what to use instead.
type netConf struct {
	types.NetConf
	DatastoreType        string         `json:"datastore_type" help:"kubernetes or etcdv3; empty: etcdv3 if there are etcd endpoints, else kubernetes."`
	CalicoAPIGroup       string         `json:"calico_api_group" help:"API group that the cluster keeps Calico's objects in: crd.projectcalico.org/v1 or projectcalico.org/v3; empty: as the agent or the plugin finds."`
	Nodename             string         `json:"nodename" help:"This node's name in Kubernetes; empty: nodename_file's content, else the host name in lower case."`
	NodenameFile         string         `json:"nodename_file" default:"/var/lib/calico/nodename" help:"Written by the agent; calico refuses to work without it."`
	NodenameFileOptional bool           `json:"nodename_file_optional" help:"Work without nodename_file."`
	Hostname             string         `json:"hostname" instead:"nodename" help:"This node's name if neither nodename nor the file has one."`
	MTU                  int            `json:"mtu" default:"0" help:"MTU of the pod's link; 0: the agent's, in /var/lib/calico/mtu, else the kernel's default."`
	RequireMTUFile       bool           `json:"require_mtu_file" help:"With mtu 0, refuse to work without /var/lib/calico/mtu."`
	NumQueues            int            `json:"num_queues" default:"1" help:"Receive and transmit queues of the link."`
	DeviceType           string         `json:"device_type" default:"veth" help:"Kind of the link: veth, or netkit, instead of which a kernel without it gets veth."`
	LogLevel             string         `json:"log_level" default:"info" help:"debug, info, warn or error; anything else is info."`
	LogFilePath          string         `json:"log_file_path" help:"Log to this file too; to standard error always."`
	LogFileMaxSize       int            `json:"log_file_max_size" default:"100" help:"Size in MB at which the log file is rotated."`
	LogFileMaxAge        int            `json:"log_file_max_age" default:"30" help:"Days for which rotated log files are kept."`
	LogFileMaxCount      int            `json:"log_file_max_count" default:"10" help:"How many rotated log files are kept."`
	IPAM                 ipamConf       `json:"ipam"`
	IPAMLockFile         string         `json:"ipam_lock_file" default:"/var/run/calico/ipam.lock" help:"Lock by which one plugin of a node assigns at a time."`
	QPS                  float64        `json:"qps" help:"Accepted: a call makes few requests."`
	Burst                int            `json:"burst" help:"Accepted, as qps."`
	Policy               policyConf     `json:"policy"`
	Kubernetes           kubernetesConf `json:"kubernetes"`
	FeatureControl       featureConf    `json:"feature_control"`
	ContainerSettings    containerConf  `json:"container_settings"`
	IncludeDefaultRoutes bool           `json:"include_default_routes" help:"With ipam.routes, the pod gets the default route too."`
	ReadinessGates       []string       `json:"readiness_gates" help:"URLs that must answer with status 200 to 399 before ADD goes on, within 30 seconds."`
	PolicyEnforced       bool           `json:"policy_enforced" help:"The agent enforces NetworkPolicies: while the kernel has none of its rules, as after a reboot, ADD closes pods, unless the agent has left policies to another engine."`
	PolicySetupTimeout   int            `json:"policy_setup_timeout_seconds" default:"0" help:"How long ADD waits for the pod's policies; then it warns and goes on, and the pod is closed until they are in force. Without rules of the agent and policy_enforced: for Felix's file in endpoint_status_dir."`
	EndpointStatusDir    string         `json:"endpoint_status_dir" default:"/var/run/calico/endpoint-status" help:"Where Felix writes those files."`
	Dataplane            dataplaneConf  `json:"dataplane_options"`
	EtcdEndpoints        string         `json:"etcd_endpoints" help:"Comma-separated URLs of etcd."`
	EtcdDiscoverySRV     string         `json:"etcd_discovery_srv" help:"Domain with SRV records etcd-client, instead of etcd_endpoints."`
	EtcdCACertFile       string         `json:"etcd_ca_cert_file" help:"PEM file of the authorities that may sign etcd's certificate."`
	EtcdCertFile         string         `json:"etcd_cert_file" help:"PEM file of the client certificate for etcd."`
	EtcdKeyFile          string         `json:"etcd_key_file" help:"PEM file of its key."`
	EtcdAuthority        string         `json:"etcd_authority" instead:"etcd_endpoints" help:"host:port of etcd."`
	EtcdScheme           string         `json:"etcd_scheme" instead:"etcd_endpoints" help:"http or https, for etcd_authority."`

	env      config.Plugin
	outdated []Option // the deprecated keys that are set
}

type ipamConf struct {
	Type string `json:"type" help:"IPAM plugin, required: calico itself serves calico-ipam, and executes any other."`
	// Strings, as in Calico: only "false" and only "true" change the default.
	AssignIPv4 string   `json:"assign_ipv4" default:"true" help:"calico-ipam: only the string false turns IPv4 off."`
	AssignIPv6 string   `json:"assign_ipv6" default:"false" help:"calico-ipam: only the string true turns IPv6 on."`
	IPv4Pools  []string `json:"ipv4_pools" help:"calico-ipam: names or CIDRs of IPv4 pools; empty: all."`
	IPv6Pools  []string `json:"ipv6_pools" help:"calico-ipam: the same for IPv6."`
	// The keys below are host-local's. Other IPAM plugins may use them for values of other types.
	Subnet json.RawMessage `json:"subnet" type:"string" help:"host-local: usePodCidr or usePodCidrIPv6 stand for the node's pod CIDR of that family."`
	Ranges json.RawMessage `json:"ranges" type:"list" help:"host-local: the same for subnet in ranges."`
	Routes json.RawMessage `json:"routes" type:"list" help:"host-local: routes of the pod (dst) in place of the default route; the gateway is always the node."`
}

type policyConf struct {
	Type       string `json:"type" help:"k8s: annotations of pods and namespaces count. calico-ipam takes any other value for none."`
	APIRoot    string `json:"k8s_api_root" instead:"kubernetes.k8s_api_root" help:"URL of the API server; what follows /api/ is cut off."`
	AuthToken  string `json:"k8s_auth_token" instead:"kubernetes.kubeconfig" help:"Token; wins over the kubeconfig's."`
	ClientCert string `json:"k8s_client_certificate" instead:"kubernetes.kubeconfig" help:"PEM file of the client certificate; wins over the kubeconfig's."`
	ClientKey  string `json:"k8s_client_key" instead:"kubernetes.kubeconfig" help:"PEM file of its key."`
	CA         string `json:"k8s_certificate_authority" instead:"kubernetes.kubeconfig" help:"PEM file of the authorities; wins over the kubeconfig's."`
}

type kubernetesConf struct {
	Kubeconfig string `json:"kubeconfig" help:"Kubeconfig. Empty takes the installer's, /etc/cni/net.d/calico-kubeconfig, unless k8s_api_root is set."`
	APIRoot    string `json:"k8s_api_root" help:"URL of the API server; wins over the kubeconfig's."`
	NodeName   string `json:"node_name" help:"Node whose pod CIDRs host-local uses, if another."`
}

type featureConf struct {
	IPAddrsNoIPAM bool `json:"ip_addrs_no_ipam" help:"Allow the annotation ipAddrsNoIpam."`
	FloatingIPs   bool `json:"floating_ips" help:"Allow the annotation floatingIPs."`
}

type containerConf struct {
	AllowIPForwarding bool `json:"allow_ip_forwarding" help:"Let the pod forward packets between its interfaces."`
}

type dataplaneConf struct {
	Type string `json:"type" help:"Leave it empty: pods are connected by this node's kernel only."`
}

var networkName = regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`)

// parseConf reads a plugin's network configuration and, for what it leaves open, the environment. Errors carry CNI's
// codes for malformed and for invalid configuration.
func parseConf(plugin string, stdin []byte) (netConf, error) {
	return readConf(plugin, stdin, config.OS())
}

func readConf(plugin string, stdin []byte, env config.Env) (netConf, error) {
	var c netConf
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, failure(types.ErrDecodingFailure, fmt.Errorf("network configuration: %w", err))
	}
	var err error
	if c.env, err = config.LoadPlugin(env); err != nil {
		return c, failure(types.ErrInvalidEnvironmentVariables, err)
	}
	c.outdated = deprecated(&c)
	c.complete()
	if plugin == calicoIPAM {
		c.forIPAM()
	}
	return c, failure(types.ErrInvalidNetworkConfig, c.validate(plugin))
}

// forIPAM adapts the configuration to calico-ipam, whatever plugin executes it: ipam.type and nodename_file_optional do
// not count, nor does any policy.type but k8s.
func (c *netConf) forIPAM() {
	c.IPAM.Type, c.NodenameFileOptional = calicoIPAM, true
	if !c.ofPods() {
		c.Policy.Type = ""
	}
}

// complete fills in missing values: from deprecated keys, from the environment, then the defaults.
func (c *netConf) complete() {
	c.CNIVersion = cmp.Or(c.CNIVersion, unversioned)
	env := &c.env
	for into, value := range map[*string]string{
		&c.CalicoAPIGroup:        env.APIGroup,
		&c.Kubernetes.Kubeconfig: env.Kubeconfig,
		&c.Kubernetes.APIRoot:    cmp.Or(beforeAPI(c.Policy.APIRoot), env.K8sEndpoint),
		&c.Policy.CA:             env.K8sCAFile,
		&c.Policy.ClientCert:     env.K8sCertFile,
		&c.Policy.ClientKey:      env.K8sKeyFile,
		&c.EtcdCACertFile:        env.EtcdCACertFile,
		&c.EtcdCertFile:          env.EtcdCertFile,
		&c.EtcdKeyFile:           env.EtcdKeyFile,
	} {
		*into = cmp.Or(*into, value)
	}
	if c.EtcdAuthority != "" && c.EtcdEndpoints == "" {
		c.EtcdEndpoints = cmp.Or(c.EtcdScheme, "http") + "://" + c.EtcdAuthority
	}
	// Both locate etcd: the configuration's value of one must not meet the environment's value of the other.
	if c.EtcdEndpoints == "" && c.EtcdDiscoverySRV == "" {
		c.EtcdEndpoints, c.EtcdDiscoverySRV = env.EtcdEndpoints, env.EtcdDiscoverySRV
	}
	c.DatastoreType = cmp.Or(c.DatastoreType, env.DatastoreType, c.likelyDatastore())
	if c.Kubernetes.APIRoot == "" {
		c.Kubernetes.Kubeconfig = cmp.Or(c.Kubernetes.Kubeconfig, defaultKubeconfig)
	}
	setDefaults(c)
}

// likelyDatastore returns Calico's guess.
func (c *netConf) likelyDatastore() string {
	if c.EtcdEndpoints != "" || c.EtcdDiscoverySRV != "" {
		return datastoreEtcd
	}
	return datastoreKubernetes
}

// beforeAPI cuts a URL as Calico does: older configurations name the root of the API, such as
// https://10.96.0.1/api/v1/.
func beforeAPI(text string) string {
	root, _, _ := strings.Cut(text, "/api/")
	return root
}

// rule is a check of a value, and the remedy.
type rule struct {
	broken bool
	key    string
	value  any
	remedy string
}

// validate refuses values that the plugin cannot work with. Keys that calico-ipam does not use are for the plugin that
// executes it.
func (c *netConf) validate(plugin string) error {
	sets := [][]rule{c.nameRules(), c.logRules(), c.datastoreRules(), c.accessRules()}
	if plugin == calico {
		sets = append(sets, c.linkRules())
	}
	for _, r := range slices.Concat(sets...) {
		if r.broken {
			return fmt.Errorf("network configuration: %s %#v: %s", r.key, r.value, r.remedy)
		}
	}
	if plugin != calico {
		return nil
	}
	for _, gate := range c.ReadinessGates {
		if u, err := url.Parse(gate); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf(
				"network configuration: readiness_gates %q: use the URL of an HTTP server, such as http://127.0.0.1:9099/readiness", gate)
		}
	}
	return nil
}

func (c *netConf) nameRules() []rule {
	return []rule{
		{!networkName.MatchString(c.Name), "name", c.Name, "use letters, digits, '_', '.' and '-'"},
		{c.DatastoreType == datastoreKubernetes && c.IPAM.Type == calicoIPAM && !objectName.MatchString(strings.ToLower(c.Name)), "name", c.Name,
			"Kubernetes refuses it as a part of the names of IPAMHandles: use letters, digits, '-' and '.' only"},
		{c.IPAM.Type == "", "ipam.type", c.IPAM.Type, "is empty: use calico-ipam"},
	}
}

// linkRules returns the rules about a container's link.
func (c *netConf) linkRules() []rule {
	return []rule{
		{c.Policy.Type != "" && !c.ofPods(), "policy.type", c.Policy.Type, "use k8s, or leave it out"},
		{c.MTU < 0 || c.MTU > 65535, "mtu", c.MTU, "use 0 for automatic, or a size in bytes"},
		{c.NumQueues < 0, "num_queues", c.NumQueues, "use 1 or more"},
		{c.PolicySetupTimeout < 0, "policy_setup_timeout_seconds", c.PolicySetupTimeout, "use 0 for the default, or more"},
		{c.DeviceType != deviceVeth && c.DeviceType != deviceNetkit, "device_type", c.DeviceType, "use veth or netkit"},
		{c.Dataplane.Type != "", "dataplane_options.type", c.Dataplane.Type,
			"interfaces are made in this node's kernel only, not by an external agent: remove the key"},
	}
}

func (c *netConf) logRules() []rule {
	rules := []rule{{!(c.QPS >= 0), "qps", c.QPS, "use 0 for the default, or more"}}
	for _, number := range []struct {
		key   string
		value int
	}{
		{"burst", c.Burst},
		{"log_file_max_size", c.LogFileMaxSize},
		{"log_file_max_age", c.LogFileMaxAge},
		{"log_file_max_count", c.LogFileMaxCount},
	} {
		rules = append(rules, rule{number.value < 0, number.key, number.value, "use 0 for the default, or more"})
	}
	return rules
}

func (c *netConf) datastoreRules() []rule {
	etcd := c.DatastoreType == datastoreEtcd
	_, badGroup := groups.Parse(c.CalicoAPIGroup)
	return []rule{
		{!etcd && c.DatastoreType != datastoreKubernetes, "datastore_type", c.DatastoreType, "use kubernetes or etcdv3"},
		{!etcd && badGroup != nil, "calico_api_group", c.CalicoAPIGroup,
			fmt.Sprintf("use %s or %s, or leave it out, so that it is found", groups.V1, groups.V3)},
		{etcd && c.EtcdEndpoints == "" && c.EtcdDiscoverySRV == "", "etcd_endpoints", "",
			"is empty: name etcd's URLs, such as https://10.0.0.1:2379, here or in ETCD_ENDPOINTS"},
		{etcd && c.EtcdEndpoints != "" && c.EtcdDiscoverySRV != "", "etcd_discovery_srv", c.EtcdDiscoverySRV,
			"etcd_endpoints is set too: remove one of them"},
		{etcd && (c.EtcdCertFile == "") != (c.EtcdKeyFile == ""), "etcd_cert_file", c.EtcdCertFile,
			"a client certificate needs etcd_cert_file and etcd_key_file: set both or neither"},
	}
}

func (c *netConf) accessRules() []rule {
	k := &c.Kubernetes
	root, err := url.Parse(k.APIRoot)
	return []rule{
		{k.APIRoot != "" && (err != nil || root.Host == ""), "kubernetes.k8s_api_root", k.APIRoot,
			"use the URL of the API server, such as https://10.96.0.1:443"},
		{(c.ofPods() || c.DatastoreType == datastoreKubernetes) && (c.Policy.ClientCert == "") != (c.Policy.ClientKey == ""),
			"policy.k8s_client_certificate", c.Policy.ClientCert,
			"a client certificate needs k8s_client_certificate and k8s_client_key: set both or neither"},
	}
}

// ofPods reports whether annotations of pods and namespaces count, which are read from the API server.
func (c *netConf) ofPods() bool { return c.Policy.Type == "k8s" }

func (c *netConf) wantsV4() bool { return c.IPAM.AssignIPv4 != "false" }
func (c *netConf) wantsV6() bool { return c.IPAM.AssignIPv6 == "true" }

// vethPrefix begins the names of the pods' links on the node.
func (c *netConf) vethPrefix() string { return c.env.InterfacePrefix }

// nodeName returns the node's name; guessed: it is only the host name. The file also shows that the agent has run on
// this node.
func nodeName(c *netConf) (name string, guessed bool, err error) {
	data, err := hostfile.ReadFile(c.NodenameFile)
	if err != nil && !c.NodenameFileOptional {
		return "", false, failure(types.ErrTryAgainLater,
			fmt.Errorf("%w: the agent tortie-node has not run on this node yet, or does not mount /var/lib/calico: kubectl -n kube-system "+
				"get pods -o wide", err))
	}
	if name := cmp.Or(c.Nodename, strings.TrimSpace(string(data)), c.Hostname); name != "" {
		return name, false, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", false, failure(types.ErrInvalidNetworkConfig, fmt.Errorf("network configuration: nodename is empty, and %w", err))
	}
	return strings.ToLower(host), true, nil
}

// podMTU returns the configured MTU, else the agent's, else 0 for the kernel's default.
func podMTU(c *netConf, file string) (int, error) {
	if c.MTU != 0 {
		return c.MTU, nil
	}
	data, err := hostfile.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !c.RequireMTUFile {
		return 0, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return 0, failure(types.ErrTryAgainLater, fmt.Errorf("%w, which require_mtu_file of the network configuration asks for: "+
			"the agent tortie-node writes it once it has run on this node", err))
	}
	if err != nil {
		return 0, failure(types.ErrIOFailure, err)
	}
	mtu, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || mtu < 68 || mtu > 65535 {
		return 0, failure(types.ErrInvalidNetworkConfig,
			fmt.Errorf("%s holds %.20q, which is no MTU: restart tortie-node on this node", file, data))
	}
	return mtu, nil
}

// access returns what overrides the kubeconfig.
func (c *netConf) access() kubernetes.Override {
	return kubernetes.Override{
		Context:  c.env.K8sContext,
		Server:   c.Kubernetes.APIRoot,
		CAFile:   c.Policy.CA,
		CertFile: c.Policy.ClientCert,
		KeyFile:  c.Policy.ClientKey,
		Token:    c.Policy.AuthToken,
		Insecure: c.env.K8sInsecure,
	}
}
