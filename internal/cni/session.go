package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/facts"
)

// session is one execution of a verb: what it was asked for, and where it looks for answers.
type session struct {
	*request
	log   *slog.Logger
	store datastore.Store
	kube  *kubernetes.Store // pods and namespaces
	facts *facts.Facts      // nil: there are none that can be used
	began time.Time
}

// open prepares a session. No request is made.
func open(log *slog.Logger, args *skel.CmdArgs, plugin string) (*session, error) {
	r, err := parseRequest(args)
	if err != nil {
		return nil, err
	}
	store, err := openStore(&r.conf, plugin)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	known, err := facts.Read(facts.DefaultFile, r.node, now)
	if err != nil {
		log.Debug("the API server is asked for everything", "why", err)
	}
	return &session{request: r, log: log, store: store, kube: store, facts: known, began: now}, nil
}

// openStore connects to the datastore that the configuration names; no request is made.
func openStore(c *netConf, plugin string) (*kubernetes.Store, error) {
	cfg, err := kubernetes.LoadKubeconfigOverridden(c.Kubernetes.Kubeconfig, c.access())
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

// ready refuses to work on a datastore that is not set up yet or that an operator has locked for a migration.
func (s *session) ready(ctx context.Context) error {
	if s.facts != nil && s.facts.DatastoreReady {
		return nil
	}
	info := api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	err := s.store.Get(ctx, &info)
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

// getNamespace reads what matters of a namespace.
func (s *session) getNamespace(ctx context.Context, ns *api.Namespace) error {
	if s.facts != nil {
		if known, ok := s.facts.Namespace(ns.Name); ok {
			ns.Labels, ns.Annotations = known.Labels, known.Annotations
			return nil
		}
	}
	return s.kube.Get(ctx, ns)
}

// begin starts f and returns what waits for its result. If f panics, who waits does.
func begin(f func() error) (wait func() error) {
	wait = sync.OnceValue(f)
	go func() {
		defer func() { _ = recover() }() // wait panics again
		_ = wait()
	}()
	return wait
}

// ask is begin for what has an answer.
func ask[T any](f func() (T, error)) (answer func() (T, error)) {
	var v T
	wait := begin(func() (err error) { v, err = f(); return err })
	return func() (T, error) { err := wait(); return v, err }
}
