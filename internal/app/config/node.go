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
	Nodename      string `env:"NODENAME" default:"" help:"Name of this node in Kubernetes. Required; set it from spec.nodeName."`
	Kubeconfig    string `env:"KUBECONFIG" default:"" help:"Kubeconfig file. Empty means the pod's own service account."`
	DatastoreType string `env:"DATASTORE_TYPE" default:"kubernetes" help:"Where the cluster's objects are. The agent knows kubernetes only; the plugins know etcdv3 too."`
	TunnelMTU     string `env:"FELIX_IPINIPMTU" default:"0" help:"MTU of tunl0. 0 leaves it to the FelixConfiguration's ipipMTU, else it is that of the interface with the node's address, less 20."`
	RawAddress
	NoDefaultPools string `env:"NO_DEFAULT_POOLS" default:"false" help:"The agent serves pods although the cluster has no IPPool. Else it waits for one: kube-controllers makes default pools."`
	RawReflectors
	RawFelix
	RawServices
	Namespace   string `env:"NAMESPACE" default:"kube-system" help:"Namespace of the agent's pod, in which the Secrets with BGP passwords are."`
	ClusterType string `env:"CLUSTER_TYPE" default:"k8s,bgp" help:"Added to ClusterInformation spec.clusterType."`
	Backend     string `env:"CALICO_NETWORKING_BACKEND" default:"bird" help:"Routing backend: bird for BGP, whose speaker is GoBGP, or vxlan for no BGP at all, so that only pools with VXLAN reach further than a subnet."`
	HealthHost  string `env:"FELIX_HEALTHHOST" default:"127.0.0.1" help:"Address that /livez, /readyz, /metrics and /status are served on."`
	HealthPort  string `env:"FELIX_HEALTHPORT" default:"9099" help:"Port that they are served on."`
	RawMetrics
	RouteProtocol string `env:"TORTIE_ROUTE_PROTOCOL" default:"84" help:"Protocol number that marks the agent's routes in the kernel; 12, 80 and 186 belong to BIRD, Felix and FRR."`
	SysctlRoot    string `env:"TORTIE_SYSCTL_ROOT" default:"/proc/sys" help:"Where sysctls are written: a container's own /proc/sys is read-only."`
	StateDir      string `env:"TORTIE_STATE_DIR" default:"/var/lib/calico" help:"Directory of the files nodename and mtu that the plugins read, and of their journal, tortie/journal."`
	RemoveRules   string `env:"TORTIE_REMOVE_CALICO_RULES" default:"false" help:"true removes the rules of nftables, and of iptables that uses it, that Calico's Felix has left on a node where it does not run any more. Network policies are not in force then."`
	AllowBGP      string `env:"TORTIE_ALLOW_BGP_FROM_PODS" default:"false" help:"true lets pods open TCP connections to BGP ports. Outside of the pools they come from the node's address, so that a peer without a password takes such a pod for the node."`
	RunDir        string `env:"TORTIE_RUN_DIR" default:"/var/run/calico" help:"Directory of tortie/facts.json, by which the agent saves the plugins requests."`
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
	SysctlRoot       string
	StateDir         string
	RunDir           string
	LogLevel         slog.Level
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
