package config

import (
	"net"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// Diagnose holds the variables of the agent's environment that `node diagnose` reads.
type Diagnose struct {
	HealthAddr    string // host:port
	RouteProtocol int
	Kubeconfig    string
	APIGroup      groups.Group // empty: detected
	// Service is the cluster IP of Service kubernetes, and APIServer the agent's address of the API server: the same,
	// unless the chart's apiServer names another. Both are invalid outside of a pod.
	Service, APIServer netip.AddrPort
}

// LoadDiagnose reads only the variables of Diagnose.
func LoadDiagnose(env Env) (Diagnose, error) {
	var raw NodeVariables
	var p problems
	p.load(env, &raw, "FELIX_HEALTHHOST", "FELIX_HEALTHPORT", "TORTIE_ROUTE_PROTOCOL", "KUBECONFIG", "CALICO_API_GROUP")
	p.routeProtocol(raw.RouteProtocol)
	d := Diagnose{HealthAddr: raw.healthAddr(), RouteProtocol: raw.RouteProtocol, Kubeconfig: raw.Kubeconfig, APIGroup: raw.APIGroup}
	// Kubernetes sets both in each pod; a name instead of an address is not looked up.
	port, _ := env("KUBERNETES_PORT")
	d.Service, _ = netip.ParseAddrPort(strings.TrimPrefix(port, "tcp://"))
	host, _ := env("KUBERNETES_SERVICE_HOST")
	port, _ = env("KUBERNETES_SERVICE_PORT")
	d.APIServer, _ = netip.ParseAddrPort(net.JoinHostPort(host, port))
	return d, p.err()
}

// PolicyView holds the variables of the agent's environment that `node policy` reads.
type PolicyView struct {
	Nodename, Kubeconfig string
	APIGroup             groups.Group // empty: detected
	HealthAddr           string       // host:port on which the agent serves HTTP
	// Flows: there are flow records, and so the rights to read staged policies.
	Flows bool
	// Felix holds the failsafe ports of the environment, which override FelixConfigurations.
	Felix api.FelixConfigurationSpec
}

// LoadPolicyView reads only the variables of PolicyView. Nodename may be empty.
func LoadPolicyView(env Env) PolicyView {
	var raw NodeVariables
	var p problems
	p.load(env, &raw, "NODENAME", "KUBECONFIG", "CALICO_API_GROUP", "TORTIE_FLOWS", "FELIX_HEALTHHOST", "FELIX_HEALTHPORT",
		"FELIX_FAILSAFEINBOUNDHOSTPORTS", "FELIX_FAILSAFEOUTBOUNDHOSTPORTS")
	return PolicyView{Nodename: raw.Nodename, HealthAddr: raw.healthAddr(), Kubeconfig: raw.Kubeconfig, APIGroup: raw.APIGroup,
		Flows: raw.Flows.Enabled, Felix: p.felix(raw.RawFelix)}
}
