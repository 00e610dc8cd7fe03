package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// Versions are the versions of the CNI specification that both plugins speak: those that Calico announces.
func Versions() version.PluginInfo {
	return version.PluginSupports("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0")
}

// verbTime bounds a whole verb: the kubelet gives up after two minutes. ipamTime bounds the work of calico-ipam from when it
// has the host's lock: in a burst of pods the wait for the lock may take longer than the work.
const (
	verbTime = 110 * time.Second
	ipamTime = 90 * time.Second
)

// run does what all verbs share: a deadline, a log line, an error with a code, and no panic that reaches the user.
func run(plugin, verb string, args *skel.CmdArgs, do func(context.Context, *slog.Logger) error) (err error) {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	log, done := openLog(&conf, plugin, args)
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), verbTime)
	defer cancel()
	start := time.Now()
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic", "verb", verb, "panic", p, "stack", string(debug.Stack()))
			err = types.NewError(types.ErrInternal, fmt.Sprintf("%s %s: internal error: %v", plugin, verb, p), "please report it with the plugin's log")
			return
		}
		err = classify(plugin+" "+verb, err)
		if err != nil {
			log.Error(verb, "err", err, "took", time.Since(start))
			return
		}
		log.Info(verb, "netns", args.Netns, "ifname", args.IfName, "took", time.Since(start))
	}()
	return do(ctx, log)
}

// openStore connects to the datastore that the configuration names; no request is made.
func openStore(c *netConf, plugin string) (*kubernetes.Store, error) {
	cfg, err := kubernetes.LoadKubeconfig(c.Kubernetes.Kubeconfig)
	if err != nil {
		return nil, badKubeconfig(err)
	}
	cfg.UserAgent = "tortie-" + plugin
	store, err := kubernetes.New(cfg)
	if err != nil {
		return nil, badKubeconfig(fmt.Errorf("kubeconfig %s: %w", c.Kubernetes.Kubeconfig, err))
	}
	return store, nil
}

func badKubeconfig(err error) error {
	return types.NewError(types.ErrInvalidNetworkConfig, err.Error(),
		"container install of tortie-node writes the file: its log on this node says why it did not, and its restart writes it anew")
}

// checkReady refuses to work on a datastore that is not set up yet or that an operator has locked for a migration.
func checkReady(ctx context.Context, store *kubernetes.Store) error {
	info := api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	err := store.Get(ctx, &info)
	if errors.Is(err, datastore.ErrNotFound) {
		return fmt.Errorf("%w: there is no ClusterInformation default: tortie-node creates it at its first start", errDatastoreNotReady)
	}
	if err != nil {
		return fmt.Errorf("is the datastore ready? %w", err)
	}
	if ready := info.Spec.DatastoreReady; ready == nil || !*ready {
		return fmt.Errorf("%w: spec.datastoreReady of ClusterInformation default is not true: tortie-node sets it at its first start, "+
			"calicoctl datastore migrate unlock sets it after a migration", errDatastoreNotReady)
	}
	return nil
}
