package kube

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// Connect returns how to reach the API server: by a kubeconfig file, or as the pod's own service account if path is empty.
// It makes no request.
func Connect(path, userAgent string) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if path == "" {
		cfg, err = rest.InClusterConfig()
	} else {
		cfg, err = clientcmd.BuildConfigFromFlags("", path)
	}
	if err != nil {
		return nil, fmt.Errorf("API server: %w: set KUBECONFIG when running outside of a pod", err)
	}
	cfg.UserAgent = userAgent
	return cfg, nil
}

// OpenStore returns the datastore at the same API server and as the same user.
func OpenStore(cfg *rest.Config) (*kubernetes.Store, error) {
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, fmt.Errorf("API server's certificates: %w", err)
	}
	return kubernetes.New(kubernetes.Config{
		Server:     cfg.Host,
		CAData:     cfg.CAData,
		ServerName: cfg.ServerName,
		Insecure:   cfg.Insecure,
		Token:      cfg.BearerToken,
		TokenFile:  cfg.BearerTokenFile,
		CertData:   cfg.CertData,
		KeyData:    cfg.KeyData,
		UserAgent:  cfg.UserAgent,
	})
}
