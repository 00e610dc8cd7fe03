package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/etcd"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// discoveryTime bounds the look-up of etcd's endpoints in DNS.
const discoveryTime = 5 * time.Second

// connect opens the datastore that the configuration names, and the API server if pods are read from it. It makes no
// request to either.
func (s *session) connect(plugin string) (err error) {
	s.place = &place{Current: groups.Found(s.setGroup(), s.findGroup)}
	if s.conf.DatastoreType == datastoreKubernetes || s.conf.ofPods() {
		if s.kube, err = openKubernetes(&s.conf, plugin, s.place.Current); err != nil {
			return err
		}
	}
	if s.conf.DatastoreType == datastoreKubernetes {
		s.store = s.kube
		return nil
	}
	s.store, err = openEtcd(&s.conf)
	return failure(types.ErrInvalidNetworkConfig, err)
}

func openKubernetes(c *netConf, plugin string, group *groups.Current) (*kubernetes.Store, error) {
	cfg, err := kubernetes.LoadKubeconfigOverridden(c.Kubernetes.Kubeconfig, c.access())
	if err != nil {
		return nil, badKubeconfig(err)
	}
	cfg.UserAgent, cfg.Group = "tortie-"+plugin, group
	store, err := kubernetes.New(cfg)
	if err != nil {
		return nil, badKubeconfig(fmt.Errorf("kubeconfig %s: %w", c.Kubernetes.Kubeconfig, err))
	}
	return store, nil
}

func badKubeconfig(err error) error {
	return types.NewError(types.ErrInvalidNetworkConfig, err.Error(),
		"container install of tortie-node writes the file: its log on this node says why it did not, and its restart writes it anew; "+
			"kubernetes.kubeconfig of the network configuration names one elsewhere")
}

func openEtcd(c *netConf) (*etcd.Store, error) {
	endpoints := strings.Split(c.EtcdEndpoints, ",")
	if c.EtcdDiscoverySRV != "" {
		ctx, cancel := context.WithTimeout(context.Background(), discoveryTime)
		defer cancel()
		found, err := etcd.Discover(ctx, c.EtcdDiscoverySRV)
		if err != nil {
			return nil, types.NewError(types.ErrTryAgainLater, err.Error(), "etcd_discovery_srv of the network configuration names the domain")
		}
		endpoints = found
	}
	store, err := etcd.New(etcd.Config{
		Endpoints: endpoints,
		CAFile:    c.EtcdCACertFile,
		CertFile:  c.EtcdCertFile,
		KeyFile:   c.EtcdKeyFile,
		Username:  c.env.EtcdUsername,
		Password:  c.env.EtcdPassword,
	})
	if err != nil {
		return nil, fmt.Errorf("network configuration: %w", err)
	}
	return store, nil
}
