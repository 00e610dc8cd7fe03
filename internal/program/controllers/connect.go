package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/controllers/migrate"
	"github.com/tortie-net/tortie/internal/datastore/etcd"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// openSource connects a tool for people to the controllers' source of addresses.
func openSource(ctx context.Context, env config.Env) (inventory.Source, error) {
	cfg, err := config.LoadControllers(env)
	if err != nil {
		return inventory.Source{}, err
	}
	rest, err := cluster.Connect(cfg.Kubeconfig, "tortie-"+name+"-ipam")
	if err != nil {
		return inventory.Source{}, err
	}
	store, err := cluster.OpenStore(cluster.Finding(rest, cfg.APIGroup))
	if err != nil {
		return inventory.Source{}, err
	}
	from := inventory.Source{IPAM: store, Cluster: store}
	if cfg.Etcd {
		from.IPAM, err = openEtcd(ctx, cfg.Plugin)
	}
	return from, err
}

// openBoth connects the migration tool to both API groups. etcd has no groups.
func openBoth(env config.Env) (migrate.Cluster, error) {
	cfg, err := config.LoadControllers(env)
	if err == nil && cfg.Etcd {
		err = errors.New("DATASTORE_TYPE is etcdv3: addresses in etcd are in no API group")
	}
	if err != nil {
		return migrate.Cluster{}, err
	}
	rest, err := cluster.Connect(cfg.Kubeconfig, "tortie-"+name+"-migrate")
	if err != nil {
		return migrate.Cluster{}, err
	}
	c := migrate.Cluster{Stores: map[groups.Group]*kubernetes.Store{}, Namespace: cfg.Namespace, Identity: identity("migrate")}
	for _, in := range groups.All {
		if c.Stores[in], err = cluster.OpenStore(cluster.Server{Config: rest, Group: groups.In(in)}); err != nil {
			return migrate.Cluster{}, err
		}
	}
	return c, nil
}

// openEtcd returns the datastore in etcd.
func openEtcd(ctx context.Context, cfg config.Plugin) (*etcd.Store, error) {
	endpoints := strings.Split(cfg.EtcdEndpoints, ",")
	switch {
	case cfg.EtcdEndpoints == "" && cfg.EtcdDiscoverySRV == "":
		return nil, fmt.Errorf("etcd is the datastore: set ETCD_ENDPOINTS, such as https://10.0.0.1:2379, or ETCD_DISCOVERY_SRV")
	case cfg.EtcdEndpoints != "" && cfg.EtcdDiscoverySRV != "":
		return nil, fmt.Errorf("ETCD_ENDPOINTS and ETCD_DISCOVERY_SRV are both set: set one of them")
	case cfg.EtcdEndpoints == "":
		var err error
		if endpoints, err = etcd.Discover(ctx, cfg.EtcdDiscoverySRV); err != nil {
			return nil, err
		}
	}
	store, err := etcd.New(etcd.Config{
		Endpoints: endpoints, CAFile: cfg.EtcdCACertFile, CertFile: cfg.EtcdCertFile, KeyFile: cfg.EtcdKeyFile,
		Username: cfg.EtcdUsername, Password: cfg.EtcdPassword,
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return store, nil
}
