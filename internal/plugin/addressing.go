package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// calicoIPAM is the ipam.type that calico serves itself: a second process and a second TLS connection would be most of
// an ADD's cost.
const calicoIPAM = "calico-ipam"

// addressing gives a container its addresses and takes them back.
type addressing interface {
	// add assigns addresses. It calls wanted, which may wait, as late as it can. After an error nothing is assigned.
	add(ctx context.Context, wanted func() (request, error)) (*types100.Result, error)
	// del releases what the container holds, as far as may permits. It succeeds if the container holds nothing.
	del(ctx context.Context, may clearance) error
}

// addressing returns the IPAM of this container: this process or an executed plugin.
func (s *session) addressing() addressing {
	if s.conf.IPAM.Type == calicoIPAM {
		return &inProcess{s}
	}
	return &delegated{s}
}

// inProcess assigns addresses from blocks of the datastore: calico-ipam, and calico in its place.
type inProcess struct{ *session }

func (p *inProcess) add(ctx context.Context, wanted func() (request, error)) (*types100.Result, error) {
	attempt, unlock, err := p.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	want, err := wanted()
	if err != nil {
		return nil, errors.Join(err, attempt.Abandon(ctx))
	}
	result, err := p.assign(ctx, attempt, want)
	if err != nil {
		return nil, err
	}
	return result, p.assignFloating(ctx, want, result)
}

// assign assigns the container's own addresses.
func (p *inProcess) assign(ctx context.Context, attempt *ipam.Attempt, want request) (*types100.Result, error) {
	if want.unmanaged != nil {
		return explicitResult(want.unmanaged), attempt.Abandon(ctx)
	}
	assigned, err := p.finish(ctx, attempt, want)
	if err != nil {
		return nil, err
	}
	p.keepCooldown(attempt)
	p.log.Info("addresses assigned", "handle", p.handle(), "addresses", assigned)
	if want.addresses != nil {
		return explicitResult(want.addresses), nil
	}
	return ipamResult(assigned), nil
}

// finish makes the assignment. Requested addresses that an earlier sandbox of the same pod holds are released there
// first, as by Calico: the runtime is about to end that sandbox.
func (p *inProcess) finish(ctx context.Context, attempt *ipam.Attempt, want request) ([]ipam.Assignment, error) {
	client := ipam.NewClient(p.blockCache(), time.Now)
	taken, err := p.takesOver(ctx, client, want)
	if err != nil {
		return nil, errors.Join(err, attempt.Abandon(ctx))
	}
	if !taken {
		return attempt.Finish(ctx, p.ipamRequest(want))
	}
	if err := attempt.Abandon(ctx); err != nil {
		return nil, err
	}
	freed, err := client.HandOver(ctx, want.earlier)
	if err != nil {
		return nil, err
	}
	p.log.Info("addresses taken over from an earlier sandbox of the pod", "handle", want.earlier, "addresses", freed)
	return client.Assign(ctx, p.ipamRequest(want))
}

// takesOver reports whether an earlier sandbox holds the requested addresses, and no other that would be free while
// that sandbox may still use it. Users with the right to change a pod can write any container ID on it, so that only
// IPAM's record of the assignment counts.
func (p *inProcess) takesOver(ctx context.Context, client *ipam.Client, want request) (bool, error) {
	if want.earlier == "" {
		return false, nil
	}
	held, err := client.Holdings(ctx, want.earlier)
	for a, owner := range held {
		if owner["namespace"] != p.namespace || owner["pod"] != p.pod ||
			!slices.Contains(want.addresses, a) && !slices.Contains(want.floating, a) {
			return false, nil
		}
	}
	return len(held) > 0, err
}

// begin starts the assignment while the pod is still being read. Without the agent's facts, what changes seldom is read
// during the wait for the host's lock. Blocks are read with the lock held. With the facts the first write is made with
// the lock held too, and the block that this node wrote last need not be read.
func (p *inProcess) begin(ctx context.Context) (attempt *ipam.Attempt, unlock func(), err error) {
	if err := p.checkNode(ctx); err != nil {
		return nil, nil, err
	}
	blocks := p.blockCache()
	client := ipam.NewClient(blocks, time.Now)
	start := ipam.Start{
		Owner: p.owner(),
		Host:  p.node,
		V4:    p.conf.wantsV4(),
		V6:    p.conf.wantsV6(),
		Use:   api.UseWorkload,
		Known: p.known(),
		// An ADD that is repeated. Whether it fails or not, an address must not be free while a pod has it.
		InUse: errors.Is(p.checkNoInterface(), errHasInterface),
	}
	if start.Known == nil {
		attempt = client.Begin(ctx, start)
	}
	if unlock, err = p.lockHost(ctx); err != nil {
		return nil, nil, err
	}
	if attempt == nil {
		start.Known = p.renewed()
		blocks.serves = assignable(p.handle())
		attempt = client.Begin(ctx, start)
	}
	return attempt, unlock, nil
}

// checkNode fails if the node's name is only the host name and no Node has it: addresses of a node that does not exist
// are collected as leaked.
func (s *session) checkNode(ctx context.Context) error {
	if !s.nodeGuessed || s.conf.DatastoreType != datastoreKubernetes {
		return nil
	}
	err := s.kube.Get(ctx, &api.Node{Meta: api.Meta{Name: s.node}})
	if errors.Is(err, datastore.ErrNotFound) {
		return failure(types.ErrInvalidNetworkConfig,
			fmt.Errorf("network configuration: nodename is empty, and this machine's name %q is no Node's: set nodename to this node's name "+
				"in Kubernetes", s.node))
	}
	return err
}

// renewed returns known from facts that are read anew: during the wait for the host's lock, other calls may have filled
// or claimed a block.
func (s *session) renewed() *ipam.Known {
	if f, err := facts.Read(facts.DefaultFile, s.node, time.Now()); err == nil && f.DatastoreReady {
		s.facts = f
	}
	return s.known()
}

// known returns the agent's facts about IPAM; nil if there are no usable ones.
func (s *session) known() *ipam.Known {
	f := s.facts
	if f == nil || !f.DatastoreReady {
		return nil
	}
	k := &ipam.Known{Config: f.Config, Pools: f.Pools, Reservations: f.Reservations, NodeLabels: f.NodeLabels}
	for _, a := range f.Affinities {
		k.Claims = append(k.Claims, ipam.Claim(a))
	}
	return k
}

// timestampFormat is the format of the attribute "timestamp": Go's time.Time.String, as Calico writes it.
const timestampFormat = "2006-01-02 15:04:05.999999999 -0700 MST"

// owner returns the handle and attributes under which addresses are assigned.
func (p *inProcess) owner() ipam.Owner {
	return ipam.Owner{
		Handle: p.handle(),
		Attrs:  p.attributes(),
	}
}

func (p *inProcess) ipamRequest(want request) ipam.Request {
	return ipam.Request{
		Owner:           p.owner(),
		Host:            p.node,
		V4:              want.v4,
		V6:              want.v6,
		PoolsV4:         want.poolsV4,
		PoolsV6:         want.poolsV6,
		Use:             api.UseWorkload,
		Addresses:       want.addresses,
		NamespaceLabels: want.namespaceLabels,
	}
}

func (p *inProcess) del(ctx context.Context, may clearance) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	return postponable(p.releaseHandles(ctx, may))
}

// releaseHandles frees what the container holds, or if it holds nothing, what a Calico before version 3 assigned to the
// pod.
func (p *inProcess) releaseHandles(ctx context.Context, may clearance) error {
	blocks := p.blockCache()
	gate := &gatedStore{Store: blocks, may: may, lock: func() (func(), error) { return p.lockHost(ctx) }}
	defer gate.leave()
	client, known := ipam.NewClient(gate, time.Now), p.known()
	if known == nil {
		known = p.keptCooldown()
	} else {
		blocks.serves = releasable(p.handle())
	}
	for _, owner := range []ipam.Owner{p.owner(), p.legacyOwner()} {
		freed, err := client.ReleaseKnowing(ctx, owner, p.node, known)
		if err != nil {
			return cmp.Or(may.wait(), err)
		}
		p.log.Info("addresses released", "handle", owner.Handle, "addresses", freed)
		p.freed = append(p.freed, freed...)
		if len(freed) > 0 {
			break
		}
	}
	return may.wait()
}

// resultFor returns the result that calico-ipam prints. calico expects a route for each address. Other plugins would
// add it to the kernel, which already has one by the address's mask and rejects this one for its host bits.
func (p *inProcess) resultFor(assigned *types100.Result) *types100.Result {
	if p.anothers {
		assigned.Routes = nil
	}
	return assigned
}

// ipamResult returns each address under its block's mask, and a route of the same form, as Calico prints it.
func ipamResult(assigned []ipam.Assignment) *types100.Result {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, a := range assigned {
		n := ipNet(netip.PrefixFrom(a.Address, a.Block.Bits()))
		result.IPs = append(result.IPs, &types100.IPConfig{Address: n})
		result.Routes = append(result.Routes, &types.Route{Dst: n})
	}
	return result
}

// explicitResult returns addresses that an annotation requested. Calico prints them as /32 or /128 and without routes.
func explicitResult(addrs []netip.Addr) *types100.Result {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, a := range addrs {
		result.IPs = append(result.IPs, &types100.IPConfig{Address: ipNet(netip.PrefixFrom(a, a.BitLen()))})
	}
	return result
}

// ipNet keeps the host bits, which netip.Prefix.Masked would clear.
func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
