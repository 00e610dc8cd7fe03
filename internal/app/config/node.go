package config

import (
	"log/slog"
	"net"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// RawNode is the environment of cmd/node as it is written. Where Calico has a name for something, it is that name.
type RawNode struct {
	Nodename      string `env:"NODENAME" default:"" help:"This node's name in Kubernetes, from spec.nodeName; required."`
	Kubeconfig    string `env:"KUBECONFIG" default:"" help:"Kubeconfig file. Empty means the pod's own service account."`
	DatastoreType string `env:"DATASTORE_TYPE" default:"kubernetes" help:"kubernetes; etcdv3 is for plugins and controllers only."`
	TunnelMTU     string `env:"FELIX_IPINIPMTU" default:"0" help:"MTU of tunl0; 0: FelixConfiguration's ipipMTU, else the interface's less 20."`
	RawAddress
	NoDefaultPools string `env:"NO_DEFAULT_POOLS" default:"false" help:"true does not wait for an IPPool, which kube-controllers makes."`
	RawReflectors
	RawFelix
	RawServices
	Namespace   string `env:"NAMESPACE" default:"kube-system" help:"Namespace of the agent's pod, in which the Secrets with BGP passwords are."`
	ClusterType string `env:"CLUSTER_TYPE" default:"k8s,bgp" help:"Added to ClusterInformation spec.clusterType."`
	Backend     string `env:"CALICO_NETWORKING_BACKEND" default:"bird" help:"bird for BGP (by GoBGP), or vxlan for no BGP: then only pools with VXLAN reach further than a subnet."`
	HealthHost  string `env:"FELIX_HEALTHHOST" default:"127.0.0.1" help:"Address that /livez, /readyz, /metrics and /status are served on."`
	HealthPort  string `env:"FELIX_HEALTHPORT" default:"9099" help:"Port that they are served on."`
	RawMetrics
	RouteProtocol string `env:"TORTIE_ROUTE_PROTOCOL" default:"84" help:"Protocol number of the agent's routes; 12, 80 and 186 belong to BIRD, Felix and FRR."`
	SysctlRoot    string `env:"TORTIE_SYSCTL_ROOT" default:"/proc/sys" help:"Where sysctls are written."`
	StateDir      string `env:"TORTIE_STATE_DIR" default:"/var/lib/calico" help:"Directory of nodename and mtu, for the plugins, and of their journal."`
	RemoveRules   string `env:"TORTIE_REMOVE_CALICO_RULES" default:"false" help:"true removes the rules of nftables, and of iptables that uses it, that Calico's Felix has left on a node where it does not run any more. Felix's policies are not in force then; with TORTIE_POLICY auto or on, the agent's own are before."`
	AllowBGP      string `env:"TORTIE_ALLOW_BGP_FROM_PODS" default:"false" help:"true lets pods connect to BGP ports; a peer outside of the pools and without a password takes such a pod for the node."`
	Policy        string `env:"TORTIE_POLICY" default:"off" help:"off enforces no NetworkPolicies, on does, auto does unless another policy engine enforces on this node: Calico's Felix (by its rules, unless TORTIE_REMOVE_CALICO_RULES is true), Cilium (link cilium_host) or Antrea (antrea-gw0). The chart's default is auto."`
	KeepConns     string `env:"TORTIE_POLICY_KEEP_CONNECTIONS" default:"false" help:"true leaves established connections alone that a changed policy forbids, as Calico does; false ends them within two seconds."`
	RunDir        string `env:"TORTIE_RUN_DIR" default:"/var/run/calico" help:"Directory of tortie/facts.json, for the plugins."`
	LogLevel      string `env:"LOG_LEVEL" default:"info" help:"Log level: debug, info, warn or error."`
	RawAccepted
}

// Node is the validated configuration of cmd/node.
type Node struct {
	Nodename   string
	Kubeconfig string
	Namespace  string
	Addresses  Addresses
	// NoDefaultPools: there may be no pools.
	NoDefaultPools bool
	Reflectors     Reflectors
	// Services are the ranges of cluster IPs that are announced if BGPConfiguration default names none.
	Services []api.ServiceRange
	// Felix overrides FelixConfigurations.
	Felix     api.FelixConfigurationSpec
	TunnelMTU int // 0 means automatic
	// NoBGP: routes follow from what the API says alone.
	NoBGP         bool
	ClusterType   []string
	HealthAddr    string // host:port
	Metrics       Metrics
	RouteProtocol int
	// RemoveRules: what Felix has left of rules is removed.
	RemoveRules bool
	// AllowBGPFromPods: the packet guard lets pods open BGP connections.
	AllowBGPFromPods bool
	// Policy says whether NetworkPolicies are enforced.
	Policy PolicyMode
	// KeepConnections: what a changed policy forbids goes on if it is established.
	KeepConnections bool
	SysctlRoot      string
	StateDir        string
	RunDir          string
	LogLevel        slog.Level
}

// PolicyMode says whether an agent enforces NetworkPolicies.
type PolicyMode string

// The modes. The zero value is PolicyOff, too.
const (
	PolicyOff  PolicyMode = "off"
	PolicyOn   PolicyMode = "on"
	PolicyAuto PolicyMode = "auto" // unless another engine enforces on the node
)

// Enforces is true of all modes but PolicyOff.
func (m PolicyMode) Enforces() bool { return m == PolicyOn || m == PolicyAuto }

func (p *problems) policyMode(value string) PolicyMode {
	return PolicyMode(p.oneOf("TORTIE_POLICY", value, string(PolicyOff), string(PolicyOn), string(PolicyAuto)))
}

// LoadNode reads and checks the environment of cmd/node. The error has one line for each variable that is wrong.
func LoadNode(env Env) (Node, error) {
	var raw RawNode
	load(env, &raw)
	var p problems
	n := Node{
		Nodename:         p.required("NODENAME", raw.Nodename, "must be this node's name in Kubernetes: set it from spec.nodeName"),
		Kubeconfig:       raw.Kubeconfig,
		Namespace:        raw.Namespace,
		Addresses:        p.addresses(raw.RawAddress),
		NoDefaultPools:   p.boolean("NO_DEFAULT_POOLS", raw.NoDefaultPools),
		Reflectors:       p.reflectors(raw.RawReflectors),
		Services:         p.serviceRanges(raw.RawServices),
		Felix:            p.felix(raw.RawFelix),
		TunnelMTU:        p.integer("FELIX_IPINIPMTU", raw.TunnelMTU, 0, 65535),
		ClusterType:      splitList(raw.ClusterType),
		HealthAddr:       p.healthAddr(raw),
		Metrics:          p.metrics(raw.RawMetrics),
		RouteProtocol:    p.routeProtocol("TORTIE_ROUTE_PROTOCOL", raw.RouteProtocol),
		RemoveRules:      p.boolean("TORTIE_REMOVE_CALICO_RULES", raw.RemoveRules),
		AllowBGPFromPods: p.boolean("TORTIE_ALLOW_BGP_FROM_PODS", raw.AllowBGP),
		Policy:           p.policyMode(raw.Policy),
		KeepConnections:  p.boolean("TORTIE_POLICY_KEEP_CONNECTIONS", raw.KeepConns),
		SysctlRoot:       raw.SysctlRoot,
		StateDir:         raw.StateDir,
		RunDir:           raw.RunDir,
	}
	n.NoBGP = p.oneOf("CALICO_NETWORKING_BACKEND", raw.Backend, "bird", "vxlan") == "vxlan"
	p.oneOf("DATASTORE_TYPE", raw.DatastoreType, "kubernetes")
	if err := n.LogLevel.UnmarshalText([]byte(raw.LogLevel)); err != nil {
		p.add("LOG_LEVEL", raw.LogLevel, "must be debug, info, warn or error")
	}
	return n, p.err()
}

// LoadHealthAddr reads where the agent serves HTTP, host:port, and nothing else: who asks the agent need not know the rest.
func LoadHealthAddr(env Env) (string, error) {
	var raw RawNode
	load(env, &raw)
	var p problems
	addr := p.healthAddr(raw)
	return addr, p.err()
}

func (p *problems) healthAddr(raw RawNode) string {
	return net.JoinHostPort(raw.HealthHost, strconv.Itoa(p.integer("FELIX_HEALTHPORT", raw.HealthPort, 1, 65535)))
}

// routeProtocol refuses the numbers that others delete routes by.
func (p *problems) routeProtocol(name, value string) int {
	n := p.integer(name, value, 5, 255)
	switch n {
	case 12, 80, 186:
		p.add(name, value, "belongs to another routing daemon, which would delete the agent's routes: choose a number of its own")
	}
	return n
}

// splitList reads a comma-separated list and leaves out empty items.
func splitList(text string) []string {
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}
