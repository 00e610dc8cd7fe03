// Package etcd runs a single-member etcd in this process, from the server's own embed package.
package etcd

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

// NewCommand returns the command "etcd": it serves until its context ends (SIGTERM, SIGINT).
//
// Data is not fsynced: a lab lives as long as its processes, and a shared disk's fsync would rule every timing.
func NewCommand() *cobra.Command {
	var dir, client, peer string
	c := &cobra.Command{
		Use:           "etcd",
		Short:         "a single-member etcd for a lab",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := config(dir, client, peer)
			if err != nil {
				return err
			}
			e, err := embed.StartEtcd(cfg)
			if err != nil {
				return fmt.Errorf("start etcd on %s: %w", client, err)
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
	c.Flags().StringVar(&dir, "data-dir", "etcd.data", "directory of the data")
	c.Flags().StringVar(&client, "listen-client-url", "http://127.0.0.1:2379", "URL to serve clients on")
	c.Flags().StringVar(&peer, "listen-peer-url", "http://127.0.0.1:2380", "URL to serve peers on")
	return c
}

func config(dir, client, peer string) (*embed.Config, error) {
	clientURL, err := url.Parse(client)
	if err != nil {
		return nil, fmt.Errorf("--listen-client-url %q: %w", client, err)
	}
	peerURL, err := url.Parse(peer)
	if err != nil {
		return nil, fmt.Errorf("--listen-peer-url %q: %w", peer, err)
	}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*clientURL}, []url.URL{*clientURL}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peerURL}, []url.URL{*peerURL}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true
	cfg.WarningUnaryRequestDuration = 2 * time.Second
	cfg.LogLevel = "error"
	return cfg, nil
}
