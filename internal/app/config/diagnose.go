package config

import "github.com/tortie-net/tortie/internal/api"

// Diagnose has the variables of the agent's environment that `node diagnose` reads.
type Diagnose struct {
	HealthAddr    string // host:port
	RouteProtocol int
}

// LoadDiagnose reads where the agent serves HTTP and how it marks its routes, and nothing else: a diagnosis does
// not need the rest.
func LoadDiagnose(env Env) (Diagnose, error) {
	var raw NodeVariables
	var p problems
	p.load(env, &raw, "FELIX_HEALTHHOST", "FELIX_HEALTHPORT", "TORTIE_ROUTE_PROTOCOL")
	p.routeProtocol(raw.RouteProtocol)
	return Diagnose{HealthAddr: raw.healthAddr(), RouteProtocol: raw.RouteProtocol}, p.err()
}

// PolicyView has the variables of the agent's environment that `node policy` reads.
type PolicyView struct {
	Nodename, Kubeconfig string
	// Flows: there are flow records, and so the rights to read staged policies.
	Flows bool
	// Felix has the failsafe ports of the environment, which override those of FelixConfigurations.
	Felix api.FelixConfigurationSpec
}

// LoadPolicyView reads the node's name, which may be missing, how to reach the API server, and what host endpoints' policies cannot forbid.
func LoadPolicyView(env Env) PolicyView {
	var raw NodeVariables
	var p problems
	p.load(env, &raw, "NODENAME", "KUBECONFIG", "TORTIE_FLOWS", "FELIX_FAILSAFEINBOUNDHOSTPORTS", "FELIX_FAILSAFEOUTBOUNDHOSTPORTS")
	return PolicyView{Nodename: raw.Nodename, Kubeconfig: raw.Kubeconfig, Flows: raw.Flows.Enabled, Felix: p.felix(raw.RawFelix)}
}
