package config

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// RawInstall is the environment of cmd/install as it is written. The names are those of Calico's installer.
type RawInstall struct {
	NetDir         string `env:"CNI_NET_DIR" default:"/etc/cni/net.d" help:"Directory of CNI configuration as the host sees it. It is written into the conflist; files go to HOST_CNI_NET_DIR."`
	HostNetDir     string `env:"HOST_CNI_NET_DIR" default:"/host/etc/cni/net.d" help:"Where the host's directory of CNI configuration is mounted."`
	HostBinDirs    string `env:"HOST_CNI_BIN_DIR" default:"/host/opt/cni/bin" help:"Where the host's directory of CNI plugins is mounted; a comma-separated list writes to several."`
	SourceDir      string `env:"CNI_BIN_SOURCE_DIR" default:"/opt/cni/bin" help:"Where the image keeps the plugins."`
	ConfName       string `env:"CNI_CONF_NAME" default:"10-calico.conflist" help:"File name of the conflist. Container runtimes read the first in lexical order."`
	NetworkConfig  string `env:"CNI_NETWORK_CONFIG" default:"" help:"Template of the conflist; placeholders are listed below. Empty means the built-in one."`
	MTU            string `env:"CNI_MTU" default:"0" help:"MTU of pods' interfaces. 0 takes what the agent writes to /var/lib/calico/mtu."`
	NodeName       string `env:"KUBERNETES_NODE_NAME" default:"" help:"Name of this node in Kubernetes. Required; set it from spec.nodeName."`
	ServiceHost    string `env:"KUBERNETES_SERVICE_HOST" default:"" help:"Address of the API server, for the plugins' kubeconfig. Required; Kubernetes sets it in every pod."`
	ServicePort    string `env:"KUBERNETES_SERVICE_PORT" default:"443" help:"Port of the API server."`
	Datastore      string `env:"DATASTORE_TYPE" default:"kubernetes" help:"Datastore of the plugins. Only kubernetes is supported."`
	ServiceAccount string `env:"CALICO_CNI_SERVICE_ACCOUNT" default:"tortie-cni" help:"ServiceAccount whose token the plugins use."`
	LogLevel       string `env:"LOG_LEVEL" default:"info" help:"Log level of the plugins and of install: debug, info, warn or error."`
	LogFile        string `env:"LOG_FILE_PATH" default:"/var/log/calico/cni/cni.log" help:"Log file of the plugins, as the host sees it."`
	AccountDir     string `env:"SERVICE_ACCOUNT_DIR" default:"/var/run/secrets/kubernetes.io/serviceaccount" help:"Where Kubernetes mounts this pod's own token, namespace and the cluster's CA."`
}

// Install is the validated configuration of cmd/install.
type Install struct {
	NetDir         string
	HostNetDir     string
	HostBinDirs    []string
	SourceDir      string
	ConfName       string
	NetworkConfig  string // "" means the built-in template
	MTU            int    // 0 means that the agent decides
	NodeName       string
	ServiceHost    string
	ServicePort    int
	ServiceAccount string
	LogLevel       string
	LogFile        string
	AccountDir     string
}

// LoadInstall reads and checks the environment of cmd/install. The error has one line for each variable that is wrong.
func LoadInstall(env Env) (Install, error) {
	var raw RawInstall
	load(env, &raw)
	return raw.validate()
}

func (r RawInstall) validate() (Install, error) {
	var p problems
	cfg := Install{
		NetDir:         p.absolute("CNI_NET_DIR", r.NetDir),
		HostNetDir:     p.absolute("HOST_CNI_NET_DIR", r.HostNetDir),
		SourceDir:      p.absolute("CNI_BIN_SOURCE_DIR", r.SourceDir),
		ConfName:       p.confName("CNI_CONF_NAME", r.ConfName),
		NetworkConfig:  r.NetworkConfig,
		MTU:            p.integer("CNI_MTU", r.MTU, 0, 65535),
		NodeName:       p.required("KUBERNETES_NODE_NAME", r.NodeName, "must be set from the field spec.nodeName of the pod"),
		ServiceAccount: r.ServiceAccount,
		LogLevel:       p.oneOf("LOG_LEVEL", r.LogLevel, "info", "debug", "warn", "error"),
		LogFile:        p.absolute("LOG_FILE_PATH", r.LogFile),
		AccountDir:     p.absolute("SERVICE_ACCOUNT_DIR", r.AccountDir),
		ServiceHost:    p.required("KUBERNETES_SERVICE_HOST", r.ServiceHost, "must be the address of the API server; Kubernetes sets it in every pod"),
		ServicePort:    p.integer("KUBERNETES_SERVICE_PORT", r.ServicePort, 1, 65535),
	}
	for dir := range strings.SplitSeq(r.HostBinDirs, ",") {
		cfg.HostBinDirs = append(cfg.HostBinDirs, p.absolute("HOST_CNI_BIN_DIR", strings.TrimSpace(dir)))
	}
	p.oneOf("DATASTORE_TYPE", r.Datastore, "kubernetes")
	return cfg, p.err()
}

// APIServer returns the API server's host:port, with brackets around an IPv6 address.
func (c Install) APIServer() string {
	return net.JoinHostPort(c.ServiceHost, strconv.Itoa(c.ServicePort))
}

func (p *problems) absolute(name, value string) string {
	if !filepath.IsAbs(value) {
		p.add(name, value, "must be an absolute path")
	}
	return filepath.Clean(value)
}

// confName accepts what container runtimes read: libcni ignores other extensions silently.
func (p *problems) confName(name, value string) string {
	if filepath.Base(value) != value || filepath.Ext(value) != ".conflist" {
		p.add(name, value, "must be a file name that ends in .conflist, without a directory")
	}
	return value
}
