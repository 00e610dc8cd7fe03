package install

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tortie-net/tortie/internal/app/config"
)

// KubeconfigName is the file, in the directory of CNI configuration, that the plugins reach the API server by.
const KubeconfigName = "calico-kubeconfig"

// The shape of a kubeconfig, as far as it is needed. The names local, calico and calico-context are Calico's.
type kubeconfig struct {
	APIVersion     string         `yaml:"apiVersion"`
	Kind           string         `yaml:"kind"`
	Clusters       []namedCluster `yaml:"clusters"`
	Users          []namedUser    `yaml:"users"`
	Contexts       []namedContext `yaml:"contexts"`
	CurrentContext string         `yaml:"current-context"`
}

type namedCluster struct {
	Name    string  `yaml:"name"`
	Cluster cluster `yaml:"cluster"`
}

type cluster struct {
	Server   string `yaml:"server"`
	CAData   string `yaml:"certificate-authority-data,omitempty"`
	Insecure bool   `yaml:"insecure-skip-tls-verify,omitempty"`
}

type namedUser struct {
	Name string `yaml:"name"`
	User user   `yaml:"user"`
}

type user struct {
	Token string `yaml:"token"`
}

type namedContext struct {
	Name    string      `yaml:"name"`
	Context contextRefs `yaml:"context"`
}

type contextRefs struct {
	Cluster string `yaml:"cluster"`
	User    string `yaml:"user"`
}

// renderKubeconfig returns the plugins' kubeconfig. The CA is inline: the plugins run on the host, where this pod's files do not
// exist. It is read anew each time, since a cluster's CA can be rotated under a running pod.
func renderKubeconfig(cfg config.Install, token string) ([]byte, error) {
	server := cluster{Server: cfg.APIServer(), Insecure: cfg.SkipTLSVerify}
	if !cfg.SkipTLSVerify {
		ca, err := os.ReadFile(filepath.Join(cfg.AccountDir, "ca.crt"))
		if err != nil {
			return nil, fmt.Errorf("reading the cluster's CA: %w (the pod needs automountServiceAccountToken)", err)
		}
		server.CAData = base64.StdEncoding.EncodeToString(ca)
	}
	text, err := yaml.Marshal(kubeconfig{
		APIVersion:     "v1",
		Kind:           "Config",
		Clusters:       []namedCluster{{Name: "local", Cluster: server}},
		Users:          []namedUser{{Name: "calico", User: user{Token: token}}},
		Contexts:       []namedContext{{Name: "calico-context", Context: contextRefs{Cluster: "local", User: "calico"}}},
		CurrentContext: "calico-context",
	})
	if err != nil {
		return nil, fmt.Errorf("encoding kubeconfig: %w", err)
	}
	return text, nil
}

// withEndpoint is cfg with what a mounted ConfigMap says now about where the API server is. An absent file leaves the variable.
func withEndpoint(cfg config.Install) (config.Install, error) {
	host, err := endpointFile(cfg, "KUBERNETES_SERVICE_HOST")
	if err != nil {
		return cfg, err
	}
	port, err := endpointFile(cfg, "KUBERNETES_SERVICE_PORT")
	if err != nil {
		return cfg, err
	}
	if host != "" {
		cfg.ServiceHost = host
	}
	if port == "" {
		return cfg, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return cfg, fmt.Errorf("%s says %q: it must be a number from 1 to 65535", filepath.Join(cfg.EndpointDir, "KUBERNETES_SERVICE_PORT"), port)
	}
	cfg.ServicePort = int(n)
	return cfg, nil
}

func endpointFile(cfg config.Install, name string) (string, error) {
	if cfg.EndpointDir == "" {
		return "", nil
	}
	text, err := os.ReadFile(filepath.Join(cfg.EndpointDir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading where the API server is: %w (TORTIE_API_ENDPOINT_DIR)", err)
	}
	return strings.TrimSpace(string(text)), nil
}
