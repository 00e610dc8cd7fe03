// Package etcd runs a single-member etcd in this process, from the server's own embed package.
package etcd

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

// options are the command's flags, with etcd's names where it has them.
type options struct {
	dir, client, peer string
	cert, key, ca     string
}

// NewCommand returns the command "etcd": it runs until its context ends (SIGTERM, SIGINT).
//
// Data is not fsynced: a lab lives only as long as its processes, and the fsync of a shared disk would dominate all
// timing.
func NewCommand() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:           "etcd",
		Short:         "a single-member etcd for a lab",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := config(o)
			if err != nil {
				return err
			}
			e, err := embed.StartEtcd(cfg)
			if err != nil {
				return fmt.Errorf("start etcd on %s: %w", o.client, err)
			}
			defer e.Close()
			select {
			case <-c.Context().Done():
				return nil
			case err := <-e.Err():
				return fmt.Errorf("etcd stopped: %w", err)
			}
		},
	}
	c.Flags().StringVar(&o.dir, "data-dir", "etcd.data", "directory of the data")
	c.Flags().StringVar(&o.client, "listen-client-url", "http://127.0.0.1:2379", "URL to serve clients on")
	c.Flags().StringVar(&o.peer, "listen-peer-url", "http://127.0.0.1:2380", "URL to serve peers on")
	c.Flags().StringVar(&o.cert, "cert-file", "", "certificate to serve clients with")
	c.Flags().StringVar(&o.key, "key-file", "", "its key")
	c.Flags().StringVar(&o.ca, "trusted-ca-file", "", "authority that must have signed the clients' certificates")
	return c
}

func config(o options) (*embed.Config, error) {
	clientURL, err := url.Parse(o.client)
	if err != nil {
		return nil, fmt.Errorf("--listen-client-url %q: %w", o.client, err)
	}
	peerURL, err := url.Parse(o.peer)
	if err != nil {
		return nil, fmt.Errorf("--listen-peer-url %q: %w", o.peer, err)
	}
	cfg := embed.NewConfig()
	cfg.Dir = o.dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*clientURL}, []url.URL{*clientURL}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peerURL}, []url.URL{*peerURL}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	tls := &cfg.ClientTLSInfo
	tls.CertFile, tls.KeyFile, tls.TrustedCAFile, tls.ClientCertAuth = o.cert, o.key, o.ca, o.ca != ""
	cfg.UnsafeNoFsync = true
	// bcrypt's cheapest hash: a lab's passwords protect nothing.
	cfg.BcryptCost = 4
	cfg.WarningUnaryRequestDuration = 2 * time.Second
	cfg.LogLevel = "error"
	return cfg, nil
}
