package plugin

import (
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

// The codes that the specification has for STATUS.
const (
	codeNotAvailable uint = 50 // an ADD would fail
	codeLimited      uint = 51 // and containers that run may not reach everything
)

const (
	// statusTime bounds STATUS, which containerd executes for each look of the kubelet, every 5 s.
	statusTime = 4 * time.Second

	// agentAway is how long the agent may be silent before STATUS takes it for gone. The node is then not ready, and after
	// five more minutes Kubernetes deletes its pods, which still work: so no restart or upgrade of the agent may take as
	// long, not even with an image to be pulled again after the kubelet's longest pause of five minutes
	// (docs/design/wiring.md). Nor does an agent that starts again, and needs a while to be ready, make a difference
	// before that time.
	agentAway = 10 * time.Minute

	// accessTime is for how long STATUS believes that the API server accepts the plugins' token.
	accessTime = time.Minute
)

// accessFile is as old as STATUS's last answer from the API server while the agent was ready.
var accessFile = filepath.Join(filepath.Dir(facts.DefaultFile), "status")

// status reports whether an ADD could succeed now, and changes nothing. While the agent follows the cluster, that costs
// the API server one request in a minute.
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
		return errors.Join(s.access(ctx), s.room(ctx))
	})
}

// inTime gives a STATUS its time, and its error the code for a plugin that is not available, unless it has that for
// limited connectivity.
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

// available says why no pod can be added, if so: the first of the reasons, in the order in which they follow from each
// other.
func (s *session) available(ctx context.Context) error {
	if s.facts != nil && !s.facts.AgentReady && s.sinceAccess() > agentAway {
		return errors.New("tortie-node on this node is not ready: it has not programmed the kernel since it started; see its log and /status")
	}
	if err := s.access(ctx); err != nil {
		return err
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

// access asks the datastore whether it is ready, with the plugins' own rights. The agent's facts do not tell about
// those, but as long as there are facts, and no new kubeconfig, an answer is good for a while.
func (s *session) access(ctx context.Context) error {
	if s.facts != nil && s.facts.DatastoreReady && s.sinceAccess() < accessTime && !s.kubeconfigIsNew() {
		return nil
	}
	direct := *s
	direct.facts = nil
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

// sinceAccess is how long ago the API server accepted the plugins' token while the agent was ready; very long if never.
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

// kubeconfigIsNew reports whether the API server has not seen what the kubeconfig says now.
func (s *session) kubeconfigIsNew() bool {
	last, lastErr := hostfile.Lstat(accessFile)
	kubeconfig, err := os.Stat(s.conf.Kubernetes.Kubeconfig)
	return lastErr != nil || err != nil || !kubeconfig.ModTime().Before(last.ModTime().Add(-clockGrain))
}

// room says why no address can be assigned, if so. A pod asks for more, with its annotations and its namespace's
// labels.
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
	if errors.Is(err, ipam.ErrNoPool) { // for a pod of no namespace: that of the next pod is not known
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

// inUse reports whether a pool that contains the block is there for pods.
func inUse(block netip.Prefix, pools []api.IPPool) bool {
	return slices.ContainsFunc(pools, func(p api.IPPool) bool {
		cidr, err := netip.ParsePrefix(p.Spec.CIDR)
		return err == nil && !p.Spec.Disabled && p.DeletionTimestamp == "" && cidr.Overlaps(block)
	})
}

// followed returns an error if no agent keeps the node's routes. That no agent has written since the machine started
// proves nothing: one of an earlier version, and Calico's, never do.
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
