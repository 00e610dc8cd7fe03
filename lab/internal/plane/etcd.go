package plane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/pki"
	"github.com/tortie-net/tortie/lab/internal/proc"
)

// EtcdConfig is the configuration of an etcd without an API server.
type EtcdConfig struct {
	// Dir is the directory of the state: an absolute path of an existing directory. Its files are not removed.
	Dir       string
	Hyperkube string
	Spawner   *proc.Spawner
	// Address is the listen address; the port is a free one.
	Address netip.Addr
	// TLS requires client certificates: ca.crt, client.crt and client.key are written to Dir.
	TLS bool
	// Timeout is the limit of each start.
	Timeout time.Duration
}

// Etcd is a running etcd of one member.
type Etcd struct {
	cfg    EtcdConfig
	url    string
	health *http.Client
	member *proc.Process // nil after KillServer
}

// StartEtcd starts an etcd and returns when it is healthy. On error nothing runs.
func StartEtcd(ctx context.Context, cfg EtcdConfig) (*Etcd, error) {
	e := &Etcd{cfg: cfg, health: http.DefaultClient}
	if err := e.writeCerts(); err != nil {
		return nil, fmt.Errorf("prepare etcd: %w", err)
	}
	for attempt := 1; ; attempt++ {
		port, err := freePort(cfg.Address)
		if err != nil {
			return nil, err
		}
		e.url = fmt.Sprintf("http://%s", netip.AddrPortFrom(cfg.Address, port))
		if cfg.TLS {
			e.url = strings.Replace(e.url, "http:", "https:", 1)
		}
		if err = e.StartServer(ctx); err == nil || attempt == portAttempts || !errors.Is(err, errPortTaken) {
			return e, err
		}
	}
}

// Endpoint is the URL for clients.
func (e *Etcd) Endpoint() string { return e.url }

// Check returns an error when etcd has exited without KillServer.
func (e *Etcd) Check() error {
	if e.member == nil {
		return nil
	}
	select {
	case <-e.member.Done():
		return e.member.Err()
	default:
		return nil
	}
}

// Stop kills etcd: its state is discarded.
func (e *Etcd) Stop(ctx context.Context) error { return e.KillServer(ctx) }

// KillServer ends etcd by SIGKILL. Its data stay. It is idempotent.
func (e *Etcd) KillServer(ctx context.Context) error {
	if e.member == nil {
		return nil
	}
	err := e.member.Kill(ctx)
	e.member = nil
	return err
}

// StartServer restarts a killed etcd with the same port and data, and returns when it is healthy. A running one is left
// alone.
func (e *Etcd) StartServer(ctx context.Context) error {
	if e.member != nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.cfg.Timeout, fmt.Errorf("etcd was not healthy within %s", e.cfg.Timeout))
	defer cancel()
	args := []string{"--data-dir", "etcd", "--listen-client-url", e.url, "--listen-peer-url", "unix://peer:0"}
	if e.cfg.TLS {
		args = append(args, "--cert-file", "etcd.crt", "--key-file", "etcd.key", "--trusted-ca-file", "ca.crt")
	}
	member, err := e.cfg.Spawner.Start(proc.Spec{
		Name: "etcd", Path: e.cfg.Hyperkube, Args: args, Dir: e.cfg.Dir, Log: filepath.Join(e.cfg.Dir, "etcd.log"),
	})
	if err != nil {
		return err
	}
	err = kubeapi.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		select {
		case <-member.Done():
			return kubeapi.Fatal{Err: portError(member)}
		default:
			return e.healthy(ctx)
		}
	})
	if err != nil {
		return errors.Join(fmt.Errorf("start etcd: %w", err), member.Kill(context.WithoutCancel(ctx)))
	}
	e.member = member
	return nil
}

func (e *Etcd) healthy(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := e.health.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", req.URL, resp.Status)
	}
	return nil
}

func (e *Etcd) writeCerts() error {
	if !e.cfg.TLS {
		return nil
	}
	a, err := pki.NewAuthority(e.cfg.Dir, time.Now())
	if err != nil {
		return err
	}
	err = errors.Join(a.Server("etcd", []string{"localhost"}, []netip.Addr{e.cfg.Address}), a.Client("client", "client"))
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(a.CAFile())
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(e.cfg.Dir, "client.crt"), filepath.Join(e.cfg.Dir, "client.key"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	e.health = &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}}
	return nil
}
