package config

// Diagnose is what the command `node diagnose` takes from the agent's environment.
type Diagnose struct {
	HealthAddr    string // host:port
	RouteProtocol int
}

// LoadDiagnose reads where the agent serves HTTP and how it marks its routes, and nothing else: who looks for what is wrong need
// not know the rest.
func LoadDiagnose(env Env) (Diagnose, error) {
	var raw RawNode
	load(env, &raw)
	var p problems
	d := Diagnose{HealthAddr: p.healthAddr(raw), RouteProtocol: p.routeProtocol("TORTIE_ROUTE_PROTOCOL", raw.RouteProtocol)}
	return d, p.err()
}

// PolicyView is what the command `node policy` takes from the agent's environment.
type PolicyView struct{ Nodename, Kubeconfig string }

// LoadPolicyView reads the node's name, which may be missing, and how to reach the API server.
func LoadPolicyView(env Env) PolicyView {
	var raw RawNode
	load(env, &raw)
	return PolicyView{Nodename: raw.Nodename, Kubeconfig: raw.Kubeconfig}
}
