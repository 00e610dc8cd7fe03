package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// session is one execution of a verb: its input, and the stores it works with.
type session struct {
	conf        netConf
	stdin       []byte
	containerID string
	netns       string
	ifName      string
	path        string     // CNI_PATH
	args        string     // CNI_ARGS
	namespace   string     // of the pod; empty for a container that is no pod's
	pod         string     // as namespace
	podUID      string     // empty if the runtime does not pass it
	address     netip.Addr // that CNI_ARGS asks for; the zero Addr if none
	node        string
	nodeGuessed bool           // the name is only the host name
	anothers    bool           // another plugin than calico makes the container's interfaces
	mtu         int            // 0 leaves the kernel's default
	routes      []netip.Prefix // that the pod reaches through the node; nil for everything

	log   *slog.Logger
	store datastore.Store
	kube  *kubernetes.Store // pods and namespaces; nil if they are not read
	facts *facts.Facts      // nil: none that can be used
	place *place            // of Calico's objects in the API server
	began time.Time
	freed []netip.Addr // by a release
}

// open prepares a session for a container, from the checked configuration and arguments. It makes no request.
func (c *call) open() (*session, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	return s, s.open(c.plugin)
}

// openNode prepares a session for a verb about the node.
func (c *call) openNode() (*session, error) {
	node, _, err := nodeName(&c.conf)
	if err != nil {
		return nil, err
	}
	s := &session{conf: c.conf, stdin: c.StdinData, path: c.Path, args: c.Args, node: node, log: c.log}
	return s, s.open(c.plugin)
}

// session checks the input of a container's verb before anything changes.
func (c *call) session() (s *session, err error) {
	s = &session{
		log:         c.log,
		conf:        c.conf,
		stdin:       c.StdinData,
		containerID: c.ContainerID,
		netns:       c.Netns,
		ifName:      c.IfName,
		path:        c.Path,
		args:        c.Args,
	}
	if err := s.readArgs(c.Args); err != nil {
		return nil, failure(types.ErrInvalidEnvironmentVariables, fmt.Errorf("CNI_ARGS: %w", err))
	}
	if c.plugin == calico && s.plain() && c.conf.DatastoreType == datastoreKubernetes {
		return nil, failure(types.ErrInvalidEnvironmentVariables,
			errors.New("CNI_ARGS: K8S_POD_NAMESPACE and K8S_POD_NAME are missing: calico serves only pods of Kubernetes with datastore kubernetes"))
	}
	s.anothers = c.plugin == calicoIPAM && c.conf.Type != calico
	s.node, s.nodeGuessed, err = nodeName(&c.conf)
	return s, err
}

// open opens the datastore and reads the agent's facts.
func (s *session) open(plugin string) (err error) {
	s.began = time.Now()
	if err := s.connect(plugin); err != nil {
		return err
	}
	if s.conf.DatastoreType != datastoreKubernetes {
		return nil // the agent has no facts of etcd
	}
	if s.facts, err = facts.Read(facts.DefaultFile, s.node, s.began); err != nil {
		s.log.Debug("cannot use the agent's facts, reading from the API server", "why", err)
	}
	s.dropForeignFacts()
	return nil
}

// ready refuses to work on a datastore that is not set up yet or that an operator has locked for a migration.
func (s *session) ready(ctx context.Context) error {
	switch {
	case s.facts != nil && s.facts.Moving:
		return fmt.Errorf("%w: %s", errMoved, s.factsGroup())
	case s.facts != nil && s.facts.DatastoreReady:
		return nil
	}
	lock, err := s.locked(ctx)
	if err != nil && !errors.Is(err, errDatastoreNotReady) {
		err = fmt.Errorf("is the datastore ready? %w", err)
	}
	if err != nil {
		return err
	}
	if lock != groups.Ready {
		return errLocked
	}
	return nil
}

// getNamespace reads the relevant metadata of a namespace; none if pods are not read.
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

// begin starts f and returns a function that waits for its result. If f panics, wait panics.
func begin(f func() error) (wait func() error) {
	wait = sync.OnceValue(f)
	go func() {
		defer func() { _ = recover() }() // wait panics again
		_ = wait()
	}()
	return wait
}

// ask is begin for a function with a value.
func ask[T any](f func() (T, error)) (answer func() (T, error)) {
	var v T
	wait := begin(func() (err error) { v, err = f(); return err })
	return func() (T, error) { err := wait(); return v, err }
}
