package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// Server is an API server: its address and credentials, and the API group of its Calico objects.
type Server struct {
	*rest.Config
	// Group is evaluated on each request; nil means groups.V1.
	Group *groups.Current
}

// Connect returns the configuration of a client of the API server: from a kubeconfig file, or for the pod's own service
// account if path is empty. It makes no request.
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

// lookupTime bounds the DNS lookup of the API server's name.
const lookupTime = time.Second

// Addresses returns the addresses of the API server; none if its name cannot be resolved now.
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

// Endpoints returns Addresses with the API server's port.
func Endpoints(cfg *rest.Config) (all []netip.AddrPort) {
	_, port := hostPort(cfg)
	for _, a := range Addresses(cfg) {
		all = append(all, netip.AddrPortFrom(a, port))
	}
	return all
}

// hostPort returns the host and port of the API server; port 0 if the configuration is invalid.
func hostPort(cfg *rest.Config) (host string, port uint16) {
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return "", 0
	}
	number, err := strconv.ParseUint(cmp.Or(server.Port(), "443"), 10, 16)
	if err != nil {
		return "", 0
	}
	return server.Hostname(), uint16(number)
}

// Answers returns a function that opens a connection to the API server by a dialer, and closes it after the API server
// has authenticated itself.
func Answers(cfg *rest.Config) func(context.Context, *net.Dialer) error {
	return func(ctx context.Context, dialer *net.Dialer) error {
		encryption, err := rest.TLSConfigFor(cfg)
		if err != nil {
			return fmt.Errorf("API server's certificates: %w", err)
		}
		host, port := hostPort(cfg)
		by := tls.Dialer{NetDialer: dialer, Config: encryption}
		c, err := by.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// OpenStore returns the datastore at the same API server and as the same user.
func OpenStore(cfg Server) (*kubernetes.Store, error) {
	if err := rest.LoadTLSFiles(cfg.Config); err != nil {
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
		Group:      cfg.Group,
	})
}
