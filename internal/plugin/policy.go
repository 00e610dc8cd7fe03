package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// podUIDOf is the UID by which the agent knows the container's pod: that of a static pod is the kubelet's, of which the
// API server's object tells.
func (s *session) podUIDOf(pod *api.Pod) string {
	return cmp.Or(s.podUID, pod.Annotations[api.AnnotationMirrorPod], pod.UID)
}

// policed is the state of this node's policy rules at the pod's link.
type policed int

const (
	notPoliced   policed = iota
	policedLater         // it is closed, or open while the cluster has no policies, until the agent knows the pod
	policedNow           // the pod's policies are in force
)

// close sees to it, before the link is made, that no other pod's policies are in force at it: a pod of that name had
// the same. giveBack is for when no link is made.
func (s *session) close(uid string) (kernel policed, giveBack func() error, err error) {
	giveBack = nothing
	if s.plain() {
		return notPoliced, giveBack, nil
	}
	link := s.hostVeth()
	known, table, err := netpol.InForce(link)
	if err == nil && !table && s.missesRules() {
		s.log.Info("closing the pods of this node until the agent has started: the kernel has no rules of policies")
		table, err = true, netpol.Hold(s.conf.vethPrefix())
	}
	if err == nil && table && known != uid {
		giveBack, err = netpol.CloseOther(link, uid)
	}
	switch {
	case err != nil && !s.conf.PolicyEnforced:
		s.log.Debug("cannot look for policies", "err", err)
		return notPoliced, giveBack, nil
	case err != nil:
		return notPoliced, giveBack, failure(types.ErrTryAgainLater, err)
	case !table:
		return notPoliced, giveBack, nil
	case known == uid:
		return policedNow, giveBack, nil
	}
	return policedLater, giveBack, nil
}

// missesRules says of a kernel without rules of policies whether it should have them: the agent enforces, as far as is
// known, and its rules are gone, as after a reboot. An agent serves no node whose datastore is etcd: its pods would
// stay closed.
func (s *session) missesRules() bool {
	return s.conf.PolicyEnforced && s.conf.DatastoreType == datastoreKubernetes && (s.facts == nil || !s.facts.NoPolicies) &&
		!facts.NoPolicies(facts.DefaultFile, s.node)
}

// awaitPolicy waits, if the configuration asks for it, until the pod's policies are in force: by the kernel if it
// enforces them, else by Felix's word, unless the agent is known to leave that to another engine. That they are not in
// time is no reason to leave a pod without a network: it is logged.
func (s *session) awaitPolicy(ctx context.Context, kernel policed, uid string) {
	switch {
	case s.conf.PolicySetupTimeout == 0 || kernel == policedNow:
	case kernel == policedLater:
		s.awaitKernel(ctx, uid)
	case !s.conf.PolicyEnforced:
		s.awaitFelix(ctx)
	}
}

// errNotInForce: the agent has not programmed the pod's policies yet.
var errNotInForce = errors.New("the pod's policies are not in force")

func (s *session) awaitKernel(ctx context.Context, uid string) {
	link, began := s.hostVeth(), time.Now()
	err := s.policyPace().until(ctx, func(context.Context) error { return inForce(link, uid) })
	if err != nil {
		s.log.Warn("ADD continues: the pod is closed until the agent has brought its policies into force",
			"policy_setup_timeout_seconds", s.conf.PolicySetupTimeout, "err", err)
		return
	}
	s.log.Debug("policies are in force", "link", link, "waited", time.Since(began))
}

// inForce returns an error while the policies of a pod are not in force at its link, and the node enforces any.
func inForce(link, uid string) error {
	known, table, err := netpol.InForce(link)
	if err != nil || !table || known == uid {
		return err
	}
	// An agent that had not heard of it may have undone what was done for this pod.
	if _, err := netpol.CloseOther(link, uid); err != nil {
		return err
	}
	if closed, err := netpol.Closed(); err != nil || !closed {
		return err
	}
	return fmt.Errorf("%w: link %s", errNotInForce, link)
}

func (s *session) policyPace() pace {
	p := policyPace
	p.limit = time.Duration(s.conf.PolicySetupTimeout) * time.Second
	return p
}

// awaitFelix waits until Felix says that the container's policy is set up.
func (s *session) awaitFelix(ctx context.Context) {
	path := filepath.Join(s.conf.EndpointStatusDir, s.statusFile())
	err := s.policyPace().until(ctx, func(context.Context) error {
		_, err := os.Stat(path)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("ADD continues: no endpoint status of Felix in time", "policy_setup_timeout_seconds", s.conf.PolicySetupTimeout, "file", path)
	} else if err != nil {
		s.log.Warn("ADD continues: cannot read the endpoint status of Felix", "err", err)
	}
}

// statusFile is the name of the file by which Felix says that an endpoint is set up: orchestrator, workload and
// endpoint.
func (s *session) statusFile() string {
	parts := []string{"k8s", s.namespace + "/" + s.pod, s.ifName}
	if s.pod == "" {
		parts = []string{"cni", s.containerID, s.ifName}
	}
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, " ")
}
