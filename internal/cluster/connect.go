package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

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

// lookupTime bounds the question which addresses the API server's name has.
const lookupTime = time.Second

// Addresses are those at which the API server is reached, none if its name is not known now.
func Addresses(cfg *rest.Config) []netip.Addr {
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil
	}
	if a, err := netip.ParseAddr(server.Hostname()); err == nil {
		return []netip.Addr{a}
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", server.Hostname())
	if err != nil {
		return nil
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	return found
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
