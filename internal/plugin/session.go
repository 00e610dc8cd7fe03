package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// session is one execution of a verb: what it was asked for, and where it looks for answers.
type session struct {
	*request
	log   *slog.Logger
	store datastore.Store
	kube  *kubernetes.Store // pods and namespaces; nil if they are not read
	facts *facts.Facts      // nil: there are none that can be used
	began time.Time
	freed []netip.Addr // by a release
	work  *workload    // whom the container belongs to, once that was read; only for what is noted in etcd
}

// open prepares a session for a container. No request is made.
func (c *call) open() (*session, error) {
	r, err := c.request()
	if err != nil {
		return nil, err
	}
	return r.open(c.log, c.plugin)
}

// openNode prepares a session for a verb that is about the node and no container.
func (c *call) openNode() (*session, error) {
	node, _, err := nodeName(&c.conf)
	if err != nil {
		return nil, err
	}
	r := &request{conf: c.conf, stdin: c.StdinData, path: c.Path, args: c.Args, node: node}
	return r.open(c.log, c.plugin)
}

func (r *request) open(log *slog.Logger, plugin string) (_ *session, err error) {
	s := &session{request: r, log: log, began: time.Now()}
	if err := s.connect(plugin); err != nil {
		return nil, err
	}
	if r.conf.DatastoreType != datastoreKubernetes {
		return s, nil // the agent's facts are of that one
	}
	if s.facts, err = facts.Read(facts.DefaultFile, r.node, s.began); err != nil {
		log.Debug("the API server is asked for everything", "why", err)
	}
	return s, nil
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

// getNamespace reads what matters of a namespace; nothing does if pods are not read.
func (s *session) getNamespace(ctx context.Context, ns *api.Namespace) error {
	if s.kube == nil || s.plain() {
		return nil
	}
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
