package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api/groups"
)

// Controllers is the configuration of kube-controllers. Pointers are nil for variables that are not set. Variables have
// Calico's names where they exist, and take precedence over the object KubeControllersConfiguration default.
type Controllers struct {
	// Ignored are controllers that are not provided.
	Ignored []string
	// LoadBalancers: Services get addresses.
	LoadBalancers bool
	// Etcd: addresses are in etcd, with the access in Plugin.
	Etcd       bool
	Plugin     Plugin `env:"-"`
	Kubeconfig string `env:"KUBECONFIG" default:"" help:"Kubeconfig file; empty uses the pod's own service account."`
	// APIGroup is empty if it is detected.
	APIGroup   groups.Group   `env:"CALICO_API_GROUP" default:"" help:"API group that the cluster keeps Calico's objects in: crd.projectcalico.org/v1 or projectcalico.org/v3. Empty: as found."`
	Namespace  string         `env:"POD_NAMESPACE" default:"kube-system" help:"Namespace of the Lease by which one of several leads."`
	Identity   string         `env:"POD_NAME" default:"" help:"Name of this one in the Lease; empty makes one of the host's name."`
	Address    string         `env:"TORTIE_CONTROLLERS_ADDRESS" default:"127.0.0.1:9095" is:"listen" help:"host:port of /livez, /readyz, /metrics and /status."`
	Metrics    string         `env:"TORTIE_CONTROLLERS_METRICS" default:"" is:"listen" help:"host:port of a second /metrics, for other hosts; empty is none."`
	Period     *time.Duration `env:"RECONCILER_PERIOD" default:"" help:"How often everything is checked; empty: the object's, else 5m."`
	Grace      *time.Duration `env:"TORTIE_LEAK_GRACE_PERIOD" default:"" help:"How long an address must look unused to be freed; 0 is never; empty: the object's, else 15m."`
	NodeGrace  time.Duration  `env:"TORTIE_NODE_GRACE_PERIOD" default:"10s" help:"How long a Node must be gone before its addresses are freed."`
	Compaction *time.Duration `env:"COMPACTION_PERIOD" default:"" help:"How often etcd is compacted; 0 is never; empty: the object's, else 10m."`
	SyncLabels *bool          `env:"SYNC_NODE_LABELS" default:"" help:"With etcd: whether nodes' labels are copied from Kubernetes to Calico; empty: the object's, else true."`
	// HostEndpoints is Enabled, Disabled or empty.
	HostEndpoints string     `env:"AUTO_HOST_ENDPOINTS" default:"" help:"enabled or disabled: whether nodes get host endpoints; empty: the object's, else disabled."`
	Rate          int        `env:"TORTIE_API_RATE" default:"100" is:"1-10000" help:"Most requests per second to the datastore while cleaning up."`
	LogLevel      slog.Level `env:"LOG_LEVEL" default:"info" help:"Log level: debug, info, warn or error."`
	Pools         Pools
	Reflectors    Reflectors
	NoPolicy      bool              // the agents enforce none
	Set           map[string]string // the variables that were set, for the object's status
}

// ControllersVariables are the variables of kube-controllers.
type ControllersVariables struct {
	Enabled   string `env:"ENABLED_CONTROLLERS" default:"node,loadbalancer" help:"Comma-separated controllers: node, and loadbalancer, which gives addresses to Services (not with etcd); Calico's others are accepted and not provided."`
	Datastore string `env:"DATASTORE_TYPE" default:"" help:"kubernetes or etcdv3; empty is etcdv3 if ETCD_ENDPOINTS is set, else kubernetes."`
	Controllers
	RawPools
	Policy PolicyMode `env:"TORTIE_POLICY" default:"off" help:"off, on or auto, as the agents': with off each NetworkPolicy gets an Event, with on and auto those that are invalid, select no pod, or name a port that no pod declares."`
}

// calicoControllers are the controllers of Calico that are not provided here.
var calicoControllers = []string{"policy", "namespace", "serviceaccount", "workloadendpoint"}

// LoadControllers reads and checks the environment of kube-controllers. The error has one line for each variable that
// is wrong.
func LoadControllers(env Env) (Controllers, error) {
	var raw ControllersVariables
	var p problems
	p.load(env, &raw)
	c := raw.Controllers
	var err error
	if c.Plugin, err = LoadPlugin(env); err != nil {
		p = append(p, err)
	}
	c.Pools, c.Set, c.NoPolicy = p.pools(raw.RawPools), setVariables(env, raw), !raw.Policy.Enforces()
	c.LoadBalancers, c.Ignored = p.controllers(raw.Enabled)
	if c.HostEndpoints != "" {
		c.HostEndpoints = p.oneOf("AUTO_HOST_ENDPOINTS", c.HostEndpoints, "Disabled", "Enabled")
	}
	kind := cmp.Or(raw.Datastore,
		map[bool]string{true: "etcdv3", false: "kubernetes"}[c.Plugin.EtcdEndpoints != "" || c.Plugin.EtcdDiscoverySRV != ""])
	c.Etcd = p.oneOf("DATASTORE_TYPE", kind, "kubernetes", "etcdv3") == "etcdv3"
	return c, p.err()
}

// LoadControllersAddress reads only the address on which kube-controllers serves HTTP, for commands that request it.
func LoadControllersAddress(env Env) (string, error) {
	var c ControllersVariables
	var p problems
	p.load(env, &c, "TORTIE_CONTROLLERS_ADDRESS")
	return c.Address, p.err()
}

func (p *problems) controllers(text string) (loadBalancers bool, ignored []string) {
	node := false
	for _, name := range splitList(text) {
		switch {
		case name == "node":
			node = true
		case name == "loadbalancer":
			loadBalancers = true
		case slices.Contains(calicoControllers, name):
			ignored = append(ignored, name)
		default:
			p.add("ENABLED_CONTROLLERS", text, fmt.Sprintf("has %q, which is none: use node and loadbalancer, and no others than %s beside them",
				name, strings.Join(calicoControllers, ", ")))
		}
	}
	if !node {
		p.add("ENABLED_CONTROLLERS", text, "must have node, without which nothing is collected")
	}
	return loadBalancers, ignored
}

func (p *problems) listenAddr(name, value string) string {
	if _, _, err := net.SplitHostPort(value); err != nil {
		p.add(name, value, "must be host:port, such as 127.0.0.1:9095")
	}
	return value
}

// setVariables returns the variables of a struct that are set, with their values.
func setVariables(env Env, settings any) map[string]string {
	set := map[string]string{}
	for _, v := range Describe(settings) {
		if value, ok := env(v.Name); ok && strings.TrimSpace(value) != "" {
			set[v.Name] = value
		}
	}
	return set
}
