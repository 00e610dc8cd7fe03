package config

import (
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// Node is the configuration of cmd/node. Variables have Calico's names where they exist.
type Node struct {
	Nodename   string `env:"NODENAME" default:"" help:"This node's name in Kubernetes, from spec.nodeName; required."`
	Kubeconfig string `env:"KUBECONFIG" default:"" help:"Kubeconfig file. Empty means the pod's own service account."`
	// APIGroup is empty if it is detected.
	APIGroup       groups.Group `env:"CALICO_API_GROUP" default:"" help:"API group that the cluster keeps Calico's objects in: crd.projectcalico.org/v1 or projectcalico.org/v3. Empty: as found."`
	Namespace      string       `env:"NAMESPACE" default:"kube-system" help:"Namespace of the agent's pod, in which the Secrets with BGP passwords are."`
	Addresses      Addresses
	NoDefaultPools bool `env:"NO_DEFAULT_POOLS" default:"false" help:"true does not wait for an IPPool, which kube-controllers makes."`
	// Services are the ranges of cluster IPs that are announced if BGPConfiguration default names none.
	Services []api.ServiceRange
	// Felix overrides FelixConfigurations.
	Felix     api.FelixConfigurationSpec
	TunnelMTU int `env:"FELIX_IPINIPMTU" default:"0" is:"0-65535" help:"MTU of tunl0; 0: FelixConfiguration's ipipMTU, else the interface's less 20."`
	// NoBGP: routes derive from the API's objects only.
	NoBGP            bool
	ClusterType      []string `env:"CLUSTER_TYPE" default:"k8s,bgp" help:"Added to ClusterInformation spec.clusterType."`
	HealthAddr       string   // host:port
	Metrics          Metrics
	RouteProtocol    int        `env:"TORTIE_ROUTE_PROTOCOL" default:"84" is:"5-255" help:"Protocol number of the agent's routes; 12, 80 and 186 belong to BIRD, Felix and FRR."`
	RemoveRules      bool       `env:"TORTIE_REMOVE_CALICO_RULES" default:"false" help:"true removes the nftables rules, also of iptables-nft, of a Felix that does not run any more, and its policies with them; with TORTIE_POLICY auto or on, the agent's are in force before."`
	AllowBGPFromPods bool       `env:"TORTIE_ALLOW_BGP_FROM_PODS" default:"false" help:"true lets pods connect to BGP ports and send BFD to their node; a peer outside of the pools without a password takes such a pod for the node."`
	Policy           PolicyMode `env:"TORTIE_POLICY" default:"off" help:"Whether NetworkPolicies are enforced: off, on, or auto, unless another engine enforces on this node: Felix (by its rules, unless TORTIE_REMOVE_CALICO_RULES is true), Cilium or Antrea (its plugin in the first file of /etc/cni/net.d, and its link cilium_host or antrea-gw0). With auto the agent is not ready while kube-proxy uses IPVS (addresses of Services on link kube-ipvs0). The chart's default is auto."`
	KeepConnections  bool       `env:"TORTIE_POLICY_KEEP_CONNECTIONS" default:"false" help:"true keeps established connections that a changed policy forbids, as Calico does; false ends them within two seconds."`
	LockoutGuard     bool       `env:"TORTIE_POLICY_LOCKOUT_GUARD" default:"false" help:"true lets programs of the node reach the API server after host endpoints' policies have changed, until it has answered a connection that these judge; after a minute former policies come back."`
	Flows            Flows
	Flowtable        FlowtableMode `env:"TORTIE_FLOWTABLE" default:"off" help:"auto has the kernel pass packets of pods' established connections from device to device, where that costs less than routes and rules; off does not."`
	// RequireEncryption has effect where WireGuard is on.
	RequireEncryption bool `env:"TORTIE_REQUIRE_ENCRYPTION" default:"false" help:"true sends nothing in the clear to pods of other nodes where WireGuard is on (wireguardEnabled or wireguardEnabledV6), in both address families: nodes without a key are not reached."`
	// RotateKeys is the age at which WireGuard's keys are changed; 0: never.
	RotateKeys time.Duration `env:"TORTIE_WIREGUARD_ROTATE" default:"" is:"1h" help:"Age at which WireGuard's keys are changed, such as 720h; nodes add up to a tenth of it. Empty: only by the command node rotate."`
	SysctlRoot string        `env:"TORTIE_SYSCTL_ROOT" default:"/proc/sys" help:"Where sysctls are written."`
	NetSysfs   string        `env:"TORTIE_NET_SYSFS" default:"/sys/class/net" help:"Where threaded of WireGuard's devices is written."`
	StateDir   string        `env:"TORTIE_STATE_DIR" default:"/var/lib/calico" help:"Directory of nodename and mtu, for the plugins, and of their journal."`
	RunDir     string        `env:"TORTIE_RUN_DIR" default:"/var/run/calico" help:"Directory of tortie/facts.json, for the plugins."`
	LogLevel   slog.Level    `env:"LOG_LEVEL" default:"info" help:"Log level: debug, info, warn or error."`
}

// NodeVariables are the variables of cmd/node.
type NodeVariables struct {
	Node
	RawAddress
	RawFelix
	ClusterIPs    string `env:"CALICO_ADVERTISE_CLUSTER_IPS" default:"" help:"Comma-separated ranges of cluster IPs to announce if BGPConfiguration default has no serviceClusterIPs."`
	DatastoreType string `env:"DATASTORE_TYPE" default:"kubernetes" is:"kubernetes" help:"kubernetes; etcdv3 is for plugins and controllers only."`
	Backend       string `env:"CALICO_NETWORKING_BACKEND" default:"bird" is:"bird|vxlan" help:"bird: BGP (by GoBGP); vxlan: none, so that only pools with VXLAN reach beyond a subnet."`
	HealthHost    string `env:"FELIX_HEALTHHOST" default:"127.0.0.1" help:"Address that /livez, /readyz, /metrics and /status are served on."`
	HealthPort    int    `env:"FELIX_HEALTHPORT" default:"9099" is:"1-65535" help:"Port that they are served on."`
	metricsVariables
	RawAccepted
}

// PolicyMode is whether an agent enforces NetworkPolicies.
type PolicyMode string

// The modes. The zero value is PolicyOff, too.
const (
	PolicyOff  PolicyMode = "off"
	PolicyOn   PolicyMode = "on"
	PolicyAuto PolicyMode = "auto" // unless another engine enforces on the node
)

// Enforces reports whether m is PolicyOn or PolicyAuto.
func (m PolicyMode) Enforces() bool { return m == PolicyOn || m == PolicyAuto }

// FlowtableMode is whether established connections are offloaded to a flowtable.
type FlowtableMode string

// The modes. The zero value is FlowtableOff, too.
const (
	FlowtableOff  FlowtableMode = "off"
	FlowtableAuto FlowtableMode = "auto" // where the kernel gains by it
)

// LoadNode reads and checks the environment of cmd/node. The error has one line for each variable that is wrong.
func LoadNode(env Env) (Node, error) {
	var raw NodeVariables
	var p problems
	p.load(env, &raw)
	n := raw.Node
	p.required("NODENAME", n.Nodename, "must be this node's name in Kubernetes: set it from spec.nodeName")
	n.Addresses.complete(raw.RawAddress, &p)
	n.Services, n.Felix = p.serviceRanges(raw.ClusterIPs), p.felix(raw.RawFelix)
	n.NoBGP, n.HealthAddr, n.Metrics.Addr = raw.Backend == "vxlan", raw.healthAddr(), raw.metricsVariables.address()
	p.routeProtocol(n.RouteProtocol)
	return n, p.err()
}

// LoadHealthAddr reads only the host:port on which the agent serves HTTP, for commands that request it.
func LoadHealthAddr(env Env) (string, error) {
	var raw NodeVariables
	var p problems
	p.load(env, &raw, "FELIX_HEALTHHOST", "FELIX_HEALTHPORT")
	return raw.healthAddr(), p.err()
}

// LoadStateDir reads only the agent's state directory, for the command that leaves a request there.
func LoadStateDir(env Env) (string, error) {
	var raw NodeVariables
	var p problems
	p.load(env, &raw, "TORTIE_STATE_DIR")
	return raw.StateDir, p.err()
}

func (v *NodeVariables) healthAddr() string {
	return net.JoinHostPort(v.HealthHost, strconv.Itoa(v.HealthPort))
}

// routeProtocol rejects the numbers of other daemons, which would delete such routes.
func (p *problems) routeProtocol(number int) {
	switch number {
	case 12, 80, 186:
		p.add("TORTIE_ROUTE_PROTOCOL", strconv.Itoa(number),
			"belongs to another routing daemon, which would delete the agent's routes: choose a number of its own")
	}
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
