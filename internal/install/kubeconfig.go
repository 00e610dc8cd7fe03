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

	"github.com/tortie-net/tortie/internal/app/config"
)

// KubeconfigName is the name of the plugins' kubeconfig in the directory of CNI configuration.
const KubeconfigName = "calico-kubeconfig"

// kubeconfigFormat is formatted with the server, the line about its CA, and the token. The names local, calico and
// calico-context are Calico's.
const kubeconfigFormat = `apiVersion: v1
kind: Config
clusters:
    - name: local
      cluster:
        server: %q
        %s
users:
    - name: calico
      user:
        token: %q
contexts:
    - name: calico-context
      context:
        cluster: local
        user: calico
current-context: calico-context
`

// renderKubeconfig returns the plugins' kubeconfig. The CA is inline: the plugins run on the host, where this pod's
// files do not exist. It is read anew each time, since a cluster's CA can be rotated under a running pod.
func renderKubeconfig(cfg config.Install, token string) ([]byte, error) {
	trust := "insecure-skip-tls-verify: true"
	if !cfg.SkipTLSVerify {
		ca, err := os.ReadFile(filepath.Join(cfg.AccountDir, "ca.crt"))
		if err != nil {
			return nil, fmt.Errorf("reading the cluster's CA: %w (the pod needs automountServiceAccountToken)", err)
		}
		trust = "certificate-authority-data: " + base64.StdEncoding.EncodeToString(ca)
	}
	return fmt.Appendf(nil, kubeconfigFormat, cfg.APIServer(), trust, token), nil
}

// withEndpoint returns cfg with the API server's address and port from a mounted ConfigMap. A missing file leaves the
// variable.
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
