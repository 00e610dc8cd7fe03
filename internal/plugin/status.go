package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// The specification's codes for STATUS.
const (
	codeNotAvailable uint = 50 // an ADD would fail
	codeLimited      uint = 51 // and containers that run may not reach everything
)

const (
	// statusTime bounds STATUS, which containerd executes for each look of the kubelet, every 5 s.
	statusTime = 4 * time.Second

	// agentAway is how long the agent may be silent, or take to start, before STATUS fails. The node is then not ready,
	// and five minutes later Kubernetes deletes its pods, which still work. So it must exceed any restart or upgrade of
	// the agent, even if the image is pulled again after the kubelet's longest pause of five minutes
	// (docs/design/wiring.md).
	agentAway = 10 * time.Minute

	// accessTime is how long STATUS relies on its last answer from the API server.
	accessTime = time.Minute
)

// accessFile is touched when the API server answers STATUS while the agent is ready.
var accessFile = filepath.Join(filepath.Dir(facts.DefaultFile), "status")

// status reports whether an ADD could succeed now, and changes nothing. While the agent follows the cluster, it makes
// one request per minute.
func status(ctx context.Context, c *call) error {
	return inTime(ctx, calico, func(ctx context.Context) error {
		s, err := c.openNode()
		if err != nil {
			return err
		}
		return s.available(ctx)
	})
}

// ipamStatus reports whether an address could be assigned now.
func ipamStatus(ctx context.Context, c *call) error {
	return inTime(ctx, calicoIPAM, func(ctx context.Context) error {
		s, err := c.openNode()
		if err != nil {
			return err
		}
		if err := s.access(ctx); err != nil {
			return s.unlessLocked(err)
		}
		return s.room(ctx)
	})
}

// inTime bounds STATUS by statusTime and gives its error codeNotAvailable, unless it has codeLimited.
func inTime(ctx context.Context, plugin string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	e, failed := errors.AsType[*types.Error](classify(plugin+" STATUS", do(ctx)))
	if !failed {
		return nil
	}
	if e.Code != codeLimited {
		e.Code = codeNotAvailable
	}
	return e
}

// available returns the first reason why no pod can be added, causes before effects; nil if there is none.
func (s *session) available(ctx context.Context) error {
	if s.facts != nil && !s.facts.AgentReady && s.sinceAccess() > agentAway {
		return errors.New("tortie-node on this node is not ready: it has not programmed the kernel since it started; see its log and /status")
	}
	if err := s.access(ctx); err != nil {
		return cmp.Or(s.unlessLocked(err), s.followed())
	}
	assigns := s.room
	if s.conf.IPAM.Type != calicoIPAM {
		assigns = (&delegated{s}).status
	}
	if err := assigns(ctx); err != nil {
		return err
	}
	return s.followed()
}

// unlessLocked returns nil for an error of access that is no reason to make the node NotReady, although an ADD fails: a
// lock, during which no pod starts on any node, and the moment after a move in which the agent looks for the addresses
// in use. Other errors it returns as they are.
func (s *session) unlessLocked(err error) error {
	if errors.Is(err, errLocked) || errors.Is(err, errMoved) && s.sinceAccess() <= agentAway {
		return nil
	}
	return err
}

// access checks that the datastore is ready, with the plugins' own rights, which the agent's facts do not cover. With
// facts and an unchanged kubeconfig, an answer holds for accessTime.
func (s *session) access(ctx context.Context) error {
	if s.facts != nil && s.facts.DatastoreReady && s.sinceAccess() < accessTime && !s.kubeconfigIsNew() {
		return nil
	}
	direct := *s
	if s.facts == nil || !s.facts.Moving {
		direct.facts = nil
	}
	if err := direct.ready(ctx); err != nil {
		return err
	}
	if s.facts == nil || !s.facts.AgentReady {
		return nil
	}
	if err := hostfile.Touch(accessFile, time.Now()); err != nil {
		s.log.Debug("cannot cache the STATUS result", "why", err)
	}
	return nil
}

// sinceAccess returns the time since the API server accepted the plugins' token while the agent was ready; very long if
// never.
func (s *session) sinceAccess() time.Duration {
	last, err := hostfile.Lstat(accessFile)
	if err != nil {
		return math.MaxInt64
	}
	return s.began.Sub(last.ModTime()).Abs()
}

// clockGrain is how far a file's time may be behind the clock: the kernel takes it from the last tick, every 10 ms at
// the least.
const clockGrain = 10 * time.Millisecond

// kubeconfigIsNew reports whether the kubeconfig may have changed since the API server accepted it.
func (s *session) kubeconfigIsNew() bool {
	last, lastErr := hostfile.Lstat(accessFile)
	kubeconfig, err := os.Stat(s.conf.Kubernetes.Kubeconfig)
	return lastErr != nil || err != nil || !kubeconfig.ModTime().Before(last.ModTime().Add(-clockGrain))
}

// room returns why no address can be assigned; nil if one can. A pod may ask for more, by its annotations and its
// namespace's labels.
func (s *session) room(ctx context.Context) error {
	req := ipam.Request{
		Host: s.node, V4: s.conf.wantsV4(), V6: s.conf.wantsV6(), Use: api.UseWorkload,
		PoolsV4: s.conf.IPAM.IPv4Pools, PoolsV6: s.conf.IPAM.IPv6Pools,
	}
	if s.roomy(req.V4, req.V6) {
		return nil
	}
	client := ipam.NewClient(s.store, time.Now)
	err := client.Room(ctx, req, s.known())
	if errors.Is(err, ipam.ErrNoPool) { // for a pod of no namespace: the next pod's is unknown
		req.AnyNamespace = true
		err = client.Room(ctx, req, s.known())
	}
	return err
}

// roomy reports whether the agent's facts know, for each family, a block of the node that is in use and not known to be
// full.
func (s *session) roomy(v4, v6 bool) bool {
	known := s.known()
	if known == nil || len(s.conf.IPAM.IPv4Pools)+len(s.conf.IPAM.IPv6Pools) > 0 {
		return false
	}
	var have4, have6 bool
	for _, c := range known.Claims {
		block, err := netip.ParsePrefix(c.Spec.CIDR)
		if err != nil || c.Spec.State != api.AffinityConfirmed || c.Free != nil && *c.Free == 0 || !inUse(block, known.Pools) {
			continue
		}
		have4, have6 = have4 || block.Addr().Is4(), have6 || block.Addr().Is6()
	}
	return (have4 || !v4) && (have6 || !v6)
}

// inUse reports whether the block is in a pool that is enabled and not being deleted.
func inUse(block netip.Prefix, pools []api.IPPool) bool {
	return slices.ContainsFunc(pools, func(p api.IPPool) bool {
		cidr, err := netip.ParsePrefix(p.Spec.CIDR)
		return err == nil && !p.Spec.Disabled && p.DeletionTimestamp == "" && cidr.Overlaps(block)
	})
}

// followed returns an error if no agent maintains the node's routes. A missing file proves nothing: the agent's earlier
// versions, and Calico's, write none.
func (s *session) followed() error {
	age, err := facts.Age(facts.DefaultFile, s.began)
	if err != nil || age <= agentAway {
		return nil
	}
	return types.NewError(codeLimited,
		fmt.Sprintf("tortie-node on this node has not followed the cluster for %s: pods get addresses, but routes to new nodes are missing",
			age.Round(time.Second)),
		"kubectl -n kube-system get pods -o wide -l k8s-app=tortie-node, and its log: it does not run, or does not reach the API server")
}

// status asks another IPAM plugin.
func (d *delegated) status(ctx context.Context) error {
	return d.exec(ctx, "STATUS")
}
