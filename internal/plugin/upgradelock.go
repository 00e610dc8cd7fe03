package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
)

// annotationUpgrading lists, on the ClusterInformation, the nodes that migrate and have set the datastore not ready.
// The last one to end sets it ready again; an operator's lock stays.
const annotationUpgrading = "tortie.net/upgrading-nodes"

var casPace = pace{limit: 30 * time.Second, first: 20 * time.Millisecond, most: 2 * time.Second}

// lock makes all plugins of the cluster wait: another node must not claim a block before its addresses are entered.
func (m *migration) lock(ctx context.Context) error {
	return m.changeInformation(ctx, func(info *api.ClusterInformation) (changed bool, err error) {
		ready, holders := info.Spec.DatastoreReady, upgrading(info)
		switch {
		case ready == nil:
			return false, nil // no node assigns yet
		case !*ready && len(holders) == 0:
			return false, fmt.Errorf("%w: an operator or a migration has locked it: see docs/apigroups.md", errDatastoreNotReady)
		case *ready:
			holders = nil // the lock was opened by hand
		}
		if slices.Contains(holders, m.node) {
			return false, nil
		}
		setUpgrading(info, append(holders, m.node))
		return true, nil
	})
}

// unlock ends this node's part of the lock.
func (m *migration) unlock(ctx context.Context) error {
	return m.changeInformation(ctx, func(info *api.ClusterInformation) (changed bool, err error) {
		holders := upgrading(info)
		if !slices.Contains(holders, m.node) {
			return false, nil
		}
		setUpgrading(info, slices.DeleteFunc(holders, func(node string) bool { return node == m.node }))
		return true, nil
	})
}

func upgrading(info *api.ClusterInformation) []string {
	return strings.FieldsFunc(info.Annotations[annotationUpgrading], func(r rune) bool { return r == ',' })
}

// setUpgrading writes the nodes that migrate; the datastore is ready if there are none.
func setUpgrading(info *api.ClusterInformation, nodes []string) {
	ready := len(nodes) == 0
	info.Spec.DatastoreReady = &ready
	if ready {
		delete(info.Annotations, annotationUpgrading)
		return
	}
	if info.Annotations == nil {
		info.Annotations = map[string]string{}
	}
	info.Annotations[annotationUpgrading] = strings.Join(nodes, ",")
}

// changeInformation changes the ClusterInformation atomically against all other nodes. Without one no node can assign,
// and nothing is changed.
func (m *migration) changeInformation(ctx context.Context, change func(*api.ClusterInformation) (bool, error)) error {
	var final error
	err := casPace.until(ctx, func(ctx context.Context) error {
		final = nil
		info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
		err := m.store.Get(ctx, info)
		if errors.Is(err, datastore.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		changed, err := change(info)
		if err != nil || !changed {
			final = err
			return nil
		}
		return m.store.Update(ctx, info)
	})
	if err = errors.Join(err, final); err != nil {
		return fmt.Errorf("say in ClusterInformation default whether the datastore is ready: %w", err)
	}
	return nil
}

// keepTunnelAddress enters the address that a node with host-local has on tunl0, the second of its pod CIDR, unless the
// node has another tunnel address now. Without an IPIP pool for it there is no tunnel to keep.
func (m *migration) keepTunnelAddress(ctx context.Context) error {
	node := &api.Node{Meta: api.Meta{Name: m.node}}
	if err := m.store.Get(ctx, node); err != nil {
		return fmt.Errorf("read this node: %w: KUBERNETES_NODE_NAME must be its name in Kubernetes", err)
	}
	if node.Annotations[api.AnnotationIPv4TunnelAddr] != "" {
		return nil
	}
	addr, ok := tunnelAddress(node)
	if !ok {
		return nil
	}
	wanted, err := m.encapsulated(ctx, addr)
	if err != nil || !wanted {
		return err
	}
	_, err = m.client.Assign(ctx, ipam.Request{
		Owner:     ipam.Owner{Handle: names.TunnelHandle(m.node), Attrs: map[string]string{"node": m.node, "type": "ipipTunnelAddress"}},
		Host:      m.node,
		V4:        true,
		Addresses: []netip.Addr{addr},
		Use:       api.UseTunnel,
	})
	if err != nil {
		return fmt.Errorf("tunnel address: %w", err)
	}
	text := addr.String()
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{api.AnnotationIPv4TunnelAddr: &text}}}
	if err := m.store.PatchStatus(ctx, node, patch, false); err != nil {
		return fmt.Errorf("note the tunnel address: %w", err)
	}
	m.log.Info("tunnel address kept", "address", addr)
	return nil
}

// tunnelAddress returns the address that Calico's agent gives tunl0 with host-local: the first of the pod CIDR after
// the network's.
func tunnelAddress(node *api.Node) (netip.Addr, bool) {
	for _, text := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() && p.Bits() < 31 {
			return p.Masked().Addr().Next(), true
		}
	}
	return netip.Addr{}, false
}

// encapsulated reports whether an address is in a pool with IPIP that may serve tunnels.
func (m *migration) encapsulated(ctx context.Context, a netip.Addr) (bool, error) {
	var pools api.List[api.IPPool, *api.IPPool]
	if err := m.store.List(ctx, &pools, datastore.ListOptions{}); err != nil {
		return false, fmt.Errorf("list IPPools: %w", err)
	}
	for i, parsed := range ipam.ParsePools(pools.Items) {
		if !parsed.CIDR.Contains(a) || !parsed.Enabled || !slices.Contains(parsed.Uses, api.UseTunnel) {
			continue
		}
		p := &pools.Items[i]
		return p.Spec.IPIPMode != "" && p.Spec.IPIPMode != api.EncapNever, nil
	}
	return false, nil
}
