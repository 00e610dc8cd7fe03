package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// PauseImage is the image of every pod's sandbox; its archive must be among a node's images.
const PauseImage = "docker.io/tortie-net/pause:dev"

// ClusterDNS is the address of the Service kube-dns, if the cluster has one.
const ClusterDNS = "10.96.0.10"

// Config is a node's configuration, written by its starter.
type Config struct {
	Lab  string
	Name string
	// Addrs are the node's addresses, one of each family.
	Addrs []netip.Addr
	// Dir is the node's directory on the machine: logs, settings, and the data of containerd and the kubelet.
	Dir string
	// Hyperkube is the binary of kubelet and kube-proxy.
	Hyperkube string
	// Containerd is a directory with the programs of containerd 2; "" for the machine's containerd.
	Containerd string
	// Images are archives that are imported before the kubelet starts.
	Images []string
	// PodCIDRs are the ranges of pod addresses, for kube-proxy.
	PodCIDRs []netip.Prefix
	// Hosts are the other nodes' addresses, for /etc/hosts.
	Hosts map[string][]netip.Addr
	// MachineID is the node's machine ID, which a restart keeps.
	MachineID string
}

// Paths inside a node.
const (
	stateDir         = "/lab/state"
	imageDir         = "/lab/images"
	binDir           = "/lab/bin"
	ContainerdSocket = "/run/containerd/containerd.sock"
	// kubeconfigFile is written when the API server is ready; kubelet and kube-proxy wait for it.
	kubeconfigFile      = "kubeconfig"
	proxyKubeconfigFile = "proxy.kubeconfig"
	configFile          = "node.json"
)

// DiskDir is the node's disk, which outlives its processes. It must not be on an overlay file system, which cannot hold
// upper layers of another one.
func DiskDir(dir string) string { return filepath.Join(dir, "disk") }

// ConfigPath is the path of the first process' configuration.
func ConfigPath(dir string) string { return filepath.Join(dir, configFile) }

// Kubeconfigs are the files that kubelet and kube-proxy wait for, in the order in which they must be written.
func Kubeconfigs(dir string) (proxy, kubelet string) {
	return filepath.Join(dir, proxyKubeconfigFile), filepath.Join(dir, kubeconfigFile)
}

// Write writes the node's settings into its directory.
func (c Config) Write() error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the settings of node %s: %w", c.Name, err)
	}
	containerd := containerdConfig
	if c.Containerd != "" {
		containerd = containerd2Config
	}
	files := map[string]string{
		configFile:        string(b),
		"containerd.toml": containerd,
		"kubelet.yaml":    kubeletConfig,
		"proxy.yaml":      fmt.Sprintf(proxyConfig, c.Name, list(c.PodCIDRs)),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write the settings of node %s: %w", c.Name, err)
		}
	}
	return nil
}

func readConfig(path string) (Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read the node's settings: %w", err)
	}
	var c Config
	if err := json.Unmarshal(b, &c); err != nil {
		return Config{}, fmt.Errorf("parse %s: %w", path, err)
	}
	return c, nil
}

// list joins the values of all families as Kubernetes expects them.
func list[T fmt.Stringer](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ",")
}

func (c Config) hostsFile() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n")
	for name, addrs := range c.Hosts {
		for _, addr := range addrs {
			fmt.Fprintf(&b, "%s %s\n", addr, name)
		}
	}
	return b.String()
}

// restrict_oom_score_adj: without CAP_SYS_RESOURCE (a container, a restricted machine) runc could not lower the score
// of a sandbox and dies with "can't get final child's PID from pipe: EOF".
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "` + ContainerdSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`

// containerd2Config is the same configuration for containerd 2.
const containerd2Config = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "` + ContainerdSocket + `"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "` + PauseImage + `"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
`

// Images are never pulled, so none may be garbage-collected. Sysctls and eviction concern the machine, which many nodes
// share.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://` + ContainerdSocket + `
failCgroupV1: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: ` + stateDir + `/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: ` + stateDir + `/kubelet.crt
tlsPrivateKeyFile: ` + stateDir + `/kubelet.key
clusterDNS: [` + ClusterDNS + `]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
volumePluginDir: /var/lib/kubelet/volumeplugins
imageGCHighThresholdPercent: 100
imageMinimumGCAge: 24h
evictionHard: {}
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: true
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
`

// The conntrack sysctls are read-only outside the machine's own network namespace; 0 leaves them.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
clusterCIDR: "%s"
clientConnection: {kubeconfig: ` + stateDir + `/` + proxyKubeconfigFile + `}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`
