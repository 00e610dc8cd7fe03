package config

import (
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// Plugin is the environment of the CNI plugins. The names are Calico's. The network configuration takes precedence.
type Plugin struct {
	DatastoreType    string `env:"DATASTORE_TYPE" default:"" help:"As datastore_type."`
	Kubeconfig       string `env:"KUBECONFIG" default:"" help:"As kubernetes.kubeconfig."`
	K8sEndpoint      string `env:"K8S_API_ENDPOINT" default:"" help:"As kubernetes.k8s_api_root, also without a kubeconfig."`
	K8sCAFile        string `env:"K8S_CA_FILE" default:"" help:"PEM file of the API server's authorities; wins over the kubeconfig's."`
	K8sCertFile      string `env:"K8S_CERT_FILE" default:"" help:"PEM file of the client certificate; wins over the kubeconfig's."`
	K8sKeyFile       string `env:"K8S_KEY_FILE" default:"" help:"PEM file of its key."`
	K8sInsecure      bool   `env:"K8S_INSECURE_SKIP_TLS_VERIFY" default:"" help:"true does not check the API server's certificate."`
	K8sContext       string `env:"K8S_CURRENT_CONTEXT" default:"" help:"Context of the kubeconfig to use in place of its current one."`
	APIGroup         string `env:"CALICO_API_GROUP" default:"" help:"As calico_api_group."`
	EtcdEndpoints    string `env:"ETCD_ENDPOINTS" default:"" help:"As etcd_endpoints."`
	EtcdDiscoverySRV string `env:"ETCD_DISCOVERY_SRV" default:"" help:"As etcd_discovery_srv."`
	EtcdCACertFile   string `env:"ETCD_CA_CERT_FILE" default:"" help:"As etcd_ca_cert_file."`
	EtcdCertFile     string `env:"ETCD_CERT_FILE" default:"" help:"As etcd_cert_file."`
	EtcdKeyFile      string `env:"ETCD_KEY_FILE" default:"" help:"As etcd_key_file."`
	EtcdUsername     string `env:"ETCD_USERNAME" default:"" help:"User of etcd."`
	EtcdPassword     string `env:"ETCD_PASSWORD" default:"" help:"Its password."`
	InterfacePrefix  string `env:"FELIX_INTERFACEPREFIX" default:"cali" is:"link" help:"Start of pods' link names, at most 4 characters; of a list the first."`
}

// PluginVariables are the variables of the CNI plugins, including those that are only checked.
type PluginVariables struct {
	Plugin
	K8sQPS        string `env:"K8S_CLIENT_QPS" default:"" is:"number" help:"As qps."`
	K8sBurst      string `env:"K8S_CLIENT_BURST" default:"" is:"number" help:"As burst."`
	K8sNoNodePoll bool   `env:"K8S_DISABLE_NODE_POLL" default:"" help:"Accepted: the plugins poll no nodes."`
	UsePodCIDR    bool   `env:"USE_POD_CIDR" default:"" help:"Accepted: plugins take pod CIDRs by ipam.subnet usePodCidr."`
}

// LoadPlugin reads and checks the environment of the CNI plugins. The error has one line for each variable that is
// wrong.
func LoadPlugin(env Env) (Plugin, error) {
	var all PluginVariables
	var p problems
	p.load(orCalico(env), &all)
	return all.Plugin, p.err()
}

// orCalico looks up a variable with the prefix CALICO_ first, as Calico does for the datastore's variables.
func orCalico(env Env) Env {
	return func(name string) (string, bool) {
		if !strings.HasPrefix(name, "CALICO_") && !strings.HasPrefix(name, "FELIX_") {
			if value, ok := env("CALICO_" + name); ok && strings.TrimSpace(value) != "" {
				return value, true
			}
		}
		return env(name)
	}
}

// atLeastZero checks a number that has no further meaning here.
func (p *problems) atLeastZero(name, value string) string {
	if n, err := strconv.ParseFloat(value, 32); err != nil || !(n >= 0) {
		p.add(name, value, "must be a number, 0 or more")
	}
	return value
}

// interfacePrefix returns the first of a list. The kernel's names have at most 15 characters, and a hash needs 11.
func (p *problems) interfacePrefix(name, value string) string {
	prefix := value
	if first, _, ok := strings.Cut(value, ","); ok {
		prefix = strings.TrimSpace(first)
	}
	if len(prefix) == 0 || len(prefix) > 4 || strings.ContainsFunc(prefix, func(r rune) bool { return !isNameRune(r) }) {
		p.add(name, value, "must begin with 1 to 4 letters, digits, '_', '.' or '-', such as cali")
	}
	return prefix
}

func isNameRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_.-", r)
}

// UpgradeVariables are the variables of calico-ipam -upgrade besides the plugins'. It runs in a pod.
type UpgradeVariables struct {
	NodeName    string     `env:"KUBERNETES_NODE_NAME" default:"" help:"This node's name in Kubernetes, from spec.nodeName; required."`
	BinDir      string     `env:"HOST_CNI_BIN_DIR" default:"/host/opt/cni/bin" is:"path" help:"Where the host's directory of CNI plugins is mounted."`
	ServiceHost string     `env:"KUBERNETES_SERVICE_HOST" default:"" help:"Address of the API server, set by Kubernetes; KUBECONFIG and K8S_API_ENDPOINT win."`
	ServicePort string     `env:"KUBERNETES_SERVICE_PORT" default:"443" help:"Port of the API server."`
	AccountDir  string     `env:"SERVICE_ACCOUNT_DIR" default:"/var/run/secrets/kubernetes.io/serviceaccount" help:"Where Kubernetes mounts this pod's token and CA."`
	LogLevel    slog.Level `env:"LOG_LEVEL" default:"info" help:"Log level: debug, info, warn or error."`
}

// Upgrade is the validated configuration of calico-ipam -upgrade.
type Upgrade struct {
	Plugin
	NodeName string
	BinDir   string
	// APIServer is the URL of the API server, and TokenFile and CAFile the credentials for it, if Plugin names none.
	APIServer, TokenFile, CAFile string
	LogLevel                     slog.Level
}

// LoadUpgrade reads and checks the environment of calico-ipam -upgrade. The error has one line for each variable that
// is wrong.
func LoadUpgrade(env Env) (Upgrade, error) {
	var raw UpgradeVariables
	plugin, err := LoadPlugin(env)
	var p problems
	p.load(env, &raw)
	if err != nil {
		p = append(p, err)
	}
	u := Upgrade{
		Plugin:   plugin,
		NodeName: p.required("KUBERNETES_NODE_NAME", raw.NodeName, "must be this node's name in Kubernetes: set it from spec.nodeName"),
		BinDir:   raw.BinDir,
		LogLevel: raw.LogLevel,
	}
	if plugin.Kubeconfig == "" && plugin.K8sEndpoint == "" {
		host := p.required("KUBERNETES_SERVICE_HOST", raw.ServiceHost,
			"must be the address of the API server, unless KUBECONFIG is set; Kubernetes sets it in every pod")
		port := p.integer("KUBERNETES_SERVICE_PORT", raw.ServicePort, "1-65535")
		u.APIServer = "https://" + net.JoinHostPort(host, strconv.Itoa(port))
		u.TokenFile, u.CAFile = filepath.Join(raw.AccountDir, "token"), filepath.Join(raw.AccountDir, "ca.crt")
	}
	if plugin.DatastoreType != "" {
		p.oneOf("DATASTORE_TYPE", plugin.DatastoreType, "kubernetes")
	}
	return u, p.err()
}
