package config

import (
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/cniconf"
)

// Install is the configuration of the installer. Variables have Calico's names where they exist.
type Install struct {
	InstallHost
	SourceDir      string        `env:"CNI_BIN_SOURCE_DIR" default:"/opt/cni/bin" is:"path" help:"Where the image keeps the plugins."`
	SkipBinaries   []string      `env:"SKIP_CNI_BINARIES" default:"" help:"Plugins not to install, comma-separated; not calico and calico-ipam."`
	UpdateBinaries bool          `env:"UPDATE_CNI_BINARIES" default:"true" help:"false keeps whatever plugins are on the host; with calico, calico-ipam and what the conflist names there, the directory may be read-only."`
	NetworkConfig  string        `env:"CNI_NETWORK_CONFIG" default:"" help:"Template of the conflist; empty means the built-in one."`
	NetworkFile    string        `env:"CNI_NETWORK_CONFIG_FILE" default:"" is:"path" help:"File that holds the template; it wins over CNI_NETWORK_CONFIG."`
	ConfMode       fs.FileMode   `env:"TEST_FILE_PERMISSION" default:"0600" help:"Mode of the conflist, in octal."`
	MTU            int           `env:"CNI_MTU" default:"0" is:"0-65535" help:"MTU of pods' interfaces. 0 takes what the agent writes to /var/lib/calico/mtu."`
	RequireMTUFile bool          `env:"REQUIRE_MTU_FILE" default:"false" help:"With CNI_MTU 0 plugins refuse to work without /var/lib/calico/mtu."`
	Policy         PolicyMode    `env:"TORTIE_POLICY" default:"off" help:"off, on or auto, as the agent's: with on and auto, plugins wait for a pod's policies."`
	PolicyTimeout  int           `env:"TORTIE_POLICY_SETUP_TIMEOUT_SECONDS" default:"5" is:"0-60" help:"For policy_setup_timeout_seconds of the conflist, unless TORTIE_POLICY is off."`
	NodeName       string        `env:"KUBERNETES_NODE_NAME" default:"" help:"This node's name in Kubernetes, from spec.nodeName; empty: the host name in lower case."`
	ServiceHost    string        `env:"KUBERNETES_SERVICE_HOST" default:"" help:"Address of the API server, set by Kubernetes, for the plugins' kubeconfig."`
	ServicePort    int           `env:"KUBERNETES_SERVICE_PORT" default:"443" is:"1-65535" help:"Port of the API server."`
	Protocol       string        `env:"KUBERNETES_SERVICE_PROTOCOL" default:"https" is:"https|http" help:"https or http."`
	SkipTLSVerify  bool          `env:"SKIP_TLS_VERIFY" default:"false" help:"true: plugins and installer do not check the API server's certificate."`
	EndpointDir    string        `env:"TORTIE_API_ENDPOINT_DIR" default:"" is:"path" help:"Mounted ConfigMap whose KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT win over the variables and are followed."`
	Kubeconfig     string        `env:"KUBECONFIG" default:"" is:"path" help:"Kubeconfig of the installer itself; empty: the pod's service account."`
	Datastore      string        `env:"DATASTORE_TYPE" default:"kubernetes" is:"kubernetes|etcdv3" help:"Datastore of the plugins: kubernetes or etcdv3."`
	APIGroup       groups.Group  `env:"CALICO_API_GROUP" default:"" help:"API group of Calico's objects, for the placeholder: crd.projectcalico.org/v1 or projectcalico.org/v3. Empty: the plugins find it."`
	EtcdEndpoints  string        `env:"ETCD_ENDPOINTS" default:"" help:"Comma-separated URLs of etcd, for the placeholder."`
	EtcdDiscovery  string        `env:"ETCD_DISCOVERY_SRV" default:"" help:"Domain with etcd's SRV records, for the placeholder."`
	TLSDir         string        `env:"TLS_ASSETS_DIR" default:"/calico-secrets" is:"path" help:"Directory with etcd-ca, etcd-cert and etcd-key, which are followed and copied to calico-tls."`
	ServiceAccount string        `env:"CALICO_CNI_SERVICE_ACCOUNT" default:"tortie-cni" help:"ServiceAccount whose token the plugins use."`
	Refresh        time.Duration `env:"CNI_TOKEN_REFRESH_INTERVAL" default:"" is:"1m" help:"How often the token is renewed, such as 1h; empty: after a quarter to a half of its life."`
	LogLevel       string        `env:"LOG_LEVEL" default:"info" is:"info|debug|warn|error" help:"Log level of the plugins and of install: debug, info, warn or error."`
	LogMaxSize     int           `env:"LOG_FILE_MAX_SIZE" default:"100" is:"0-1048576" help:"Size in MB at which the plugins' log file is rotated."`
	LogMaxAge      int           `env:"LOG_FILE_MAX_AGE" default:"30" is:"0-1048576" help:"Days for which rotated log files are kept."`
	LogMaxCount    int           `env:"LOG_FILE_MAX_COUNT" default:"10" is:"0-1048576" help:"How many rotated log files are kept."`
	Stay           bool          `env:"SLEEP" default:"true" help:"false installs and exits, as -once: then the token is not renewed."`
	AccountDir     string        `env:"SERVICE_ACCOUNT_DIR" default:"/var/run/secrets/kubernetes.io/serviceaccount" is:"path" help:"Where Kubernetes mounts this pod's token, namespace and CA."`
	AgentReadyURL  string        `env:"TORTIE_AGENT_READY_URL" default:"" is:"url" help:"URL that answers 200 once the agent serves; then the conflist is written. Empty does not wait."`
	MetricsAddr    string        `env:"TORTIE_INSTALL_METRICS" default:"" is:"address" help:"host:port on which metrics are served. Empty serves none."`
}

// InstallHost holds the paths on the host: all that uninstall and rollback need.
type InstallHost struct {
	NetDir      string   `env:"CNI_NET_DIR" default:"/etc/cni/net.d" is:"path" help:"Directory of CNI configuration as the host sees it; files go to HOST_CNI_NET_DIR."`
	HostNetDir  string   `env:"HOST_CNI_NET_DIR" default:"/host/etc/cni/net.d" is:"path" help:"Where the host's CNI configuration is mounted."`
	HostBinDirs []string `env:"HOST_CNI_BIN_DIR" default:"" is:"path" help:"Where the host's directory of CNI plugins is mounted; of a list one writable is enough. Empty: /host/opt/cni/bin, and /host/secondary-bin-dir if mounted."`
	ConfName    string   `env:"CNI_CONF_NAME" default:"10-calico.conflist" is:"conf" help:"File name of the network's configuration."`
	OldConfName string   `env:"CNI_OLD_CONF_NAME" default:"10-calico.conflist" is:"conf" help:"File name of an earlier installation, removed once the new one is there."`
	StateDir    string   `env:"TORTIE_INSTALL_STATE_DIR" default:"/var/lib/calico" is:"path" help:"The host's directory of that name, if mounted, for copies of replaced files."`
	RunDir      string   `env:"TORTIE_INSTALL_RUN_DIR" default:"/var/run/calico" is:"path" help:"The host's directory of that name, if mounted: plugins report a refused token there."`
	LogFile     string   `env:"LOG_FILE_PATH" default:"/var/log/calico/cni/cni.log" is:"path" help:"Log file of the plugins, as the host sees it."`
}

const (
	mainBinDir      = "/host/opt/cni/bin"
	secondaryBinDir = "/host/secondary-bin-dir" // of Calico's manifests
)

// LoadInstall reads and checks the environment of the installer. The error has one line for each variable that is
// wrong.
func LoadInstall(env Env) (Install, error) {
	var cfg Install
	var p problems
	p.load(env, &cfg)
	cfg.completeBinDirs()
	if cfg.NodeName == "" {
		cfg.NodeName = p.hostName("KUBERNETES_NODE_NAME")
	}
	if cfg.Datastore == "kubernetes" {
		p.required("KUBERNETES_SERVICE_HOST", cfg.ServiceHost, "must be the address of the API server; Kubernetes sets it in every pod")
	}
	return cfg, p.err()
}

// LoadInstallHost reads and checks the variables for uninstall and rollback.
func LoadInstallHost(env Env) (InstallHost, error) {
	var cfg InstallHost
	var p problems
	p.load(env, &cfg)
	cfg.completeBinDirs()
	return cfg, p.err()
}

func (c *InstallHost) completeBinDirs() {
	if len(c.HostBinDirs) > 0 {
		return
	}
	c.HostBinDirs = []string{mainBinDir}
	if info, err := os.Stat(secondaryBinDir); err == nil && info.IsDir() {
		c.HostBinDirs = append(c.HostBinDirs, secondaryBinDir)
	}
}

// Conf returns the path of the network's configuration.
func (c InstallHost) Conf() string { return filepath.Join(c.HostNetDir, c.ConfName) }

// APIServer returns the API server's URL, with brackets around an IPv6 address.
func (c Install) APIServer() string {
	return c.Protocol + "://" + net.JoinHostPort(c.ServiceHost, strconv.Itoa(c.ServicePort))
}

func (p *problems) absolute(name, value string) string {
	if !filepath.IsAbs(value) {
		p.add(name, value, "must be an absolute path")
	}
	return filepath.Clean(value)
}

// confName accepts names that container runtimes read: libcni ignores other extensions silently.
func (p *problems) confName(name, value string) string {
	if filepath.Base(value) != value || !cniconf.Is(value) {
		p.add(name, value, "must be a file name that ends in .conflist, .conf or .json, without a directory")
	}
	return value
}

func (p *problems) mode(name, value string) fs.FileMode {
	mode, err := strconv.ParseUint(value, 8, 32)
	if err != nil || mode > 0o777 || mode&0o400 == 0 {
		p.add(name, value, "must be a file mode in octal that lets the owner read, such as 0600")
	}
	return fs.FileMode(mode)
}

// hostName returns the node's default name, the same as the plugins'. If no Node has it, the token's request fails.
func (p *problems) hostName(name string) string {
	host, err := os.Hostname()
	if err != nil {
		p.add(name, "", fmt.Sprintf("must be set from the field spec.nodeName of the pod, as there is no host name: %v", err))
	}
	return strings.ToLower(host)
}

func (p *problems) httpURL(name, value string) string {
	u, err := url.Parse(value)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		p.add(name, value, "must be a URL such as http://127.0.0.1:9099/readyz")
	}
	return value
}

func (p *problems) hostPort(name, value string) string {
	_, port, err := net.SplitHostPort(value)
	if n, notNumber := strconv.Atoi(port); err != nil || notNumber != nil || n < 1 || n > 65535 {
		p.add(name, value, "must be host:port, such as 127.0.0.1:9098 or :9098")
	}
	return value
}
