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

// podUIDOf returns the UID by which the agent knows the container's pod. For a static pod that is the kubelet's UID,
// which the API server's object has in an annotation.
func (s *session) podUIDOf(pod *api.Pod) string {
	return cmp.Or(s.podUID, pod.Annotations[api.AnnotationMirrorPod], pod.UID)
}

// policed is the state of this node's policy rules at the pod's link.
type policed int

const (
	notPoliced   policed = iota
	policedLater         // closed, or open while the cluster has no policies, until the agent knows the pod
	policedNow           // the pod's policies are in force
)

// close makes sure, before the link is made, that no other pod's policies are in force there: an earlier pod of the
// same name had the same link. giveBack undoes that if no link is made.
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

// missesRules reports whether a kernel without policy rules should have them: the agent enforces, as far as is known,
// and its rules are gone, as after a reboot. The agent serves no node with datastore etcd: pods there would stay
// closed.
func (s *session) missesRules() bool {
	return s.conf.PolicyEnforced && s.conf.DatastoreType == datastoreKubernetes && (s.facts == nil || !s.facts.NoPolicies) &&
		!facts.NoPolicies(facts.DefaultFile, s.node)
}

// awaitPolicy waits, if configured, until the pod's policies are in force: in the kernel if that has the agent's rules,
// else by Felix's status file, unless policy_enforced shows that the agent leaves policies to another engine. If they
// are late, it only logs: the pod still gets its network.
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

// inForce returns an error while the node enforces policies and the pod's policies are not in force at its link.
func inForce(link, uid string) error {
	known, table, err := netpol.InForce(link)
	if err != nil || !table || known == uid {
		return err
	}
	// An agent that did not know the pod yet may have opened the link.
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

// awaitFelix waits for Felix's status file of the container.
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

// statusFile returns the name of Felix's status file of the endpoint: orchestrator, workload and endpoint.
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
