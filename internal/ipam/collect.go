package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Collection lists the live containers of a host, so that the addresses of the others can be freed.
type Collection struct {
	Host string
	// Network is the name of the CNI network: only handles of its containers are looked at.
	Network string
	// Live are the IDs of the containers that are alive.
	Live []string
	// Before is when Live was listed; later assignments are left alone.
	Before time.Time
	// Known saves requests; nil without an agent that watches the cluster.
	Known *Known
}

// Collect frees the addresses that dead containers of the network hold on the host, and returns their holders.
// Addresses are the host's by their attribute "node", in any block; addresses without the attribute are left alone. It
// also deletes handles of the network, except other hosts', that have held nothing for longer than any ADD takes.
//
// It decides once what to free: a container that starts meanwhile has its own handle. A damaged block is an error,
// after the others were handled.
func (c *Client) Collect(ctx context.Context, what Collection) ([]Holder, error) {
	cfg, err := c.collectConfig(ctx, what.Known)
	if err != nil {
		return nil, fmt.Errorf("collect the addresses of dead containers: %w", err)
	}
	now, err := c.readHolders(ctx, what.Host)
	if err != nil {
		return nil, fmt.Errorf("collect the addresses of dead containers: %w", err)
	}
	freed, err := c.collectAddresses(ctx, slices.DeleteFunc(now.list(), what.spares), cfg)
	if now.damage != nil {
		return freed, errors.Join(err, now.damage) // it is not known which handles hold nothing
	}
	return freed, errors.Join(err, c.collectHandles(ctx, what, now.handles))
}

// collectAddresses frees what dead containers hold, and then deletes their handles.
func (c *Client) collectAddresses(ctx context.Context, dead []Holder, cfg api.IPAMConfigSpec) ([]Holder, error) {
	expired := make([]Expired, len(dead))
	for i, h := range dead {
		expired[i] = Expired{Handle: h.Handle, Addresses: h.assigned}
	}
	done, err := c.Expire(ctx, cfg, expired)
	freed := make([]Holder, len(done))
	failed := make([]error, len(done))
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i, at := range done {
		freed[i] = dead[at]
		g.Go(func() error { failed[i] = c.forget(ctx, freed[i]); return nil })
	}
	_ = g.Wait() // failed has the errors
	return freed, errors.Join(append(failed, err)...)
}

// forget deletes the handle of a freed holder. A handle that names other blocks too, or is written concurrently, is
// released as usual, in all of its blocks.
func (c *Client) forget(ctx context.Context, freed Holder) error {
	h, err := c.readHandle(ctx, freed.Handle)
	if err != nil || h == nil {
		return err
	}
	in := map[netip.Prefix]bool{}
	for _, at := range freed.assigned {
		in[at.Block] = true
	}
	release := slices.ContainsFunc(handleBlocks(h), func(b netip.Prefix) bool { return !in[b] })
	if !release {
		err = c.store.Delete(ctx, h)
		release = datastore.Contended(err)
	}
	if release {
		_, err = c.Release(ctx, freed.Handle)
	}
	if err != nil {
		return fmt.Errorf("remove handle %s: %w", freed.Handle, err)
	}
	return nil
}

// emptyHandleAge is the minimum age of a handle that is deleted because it holds nothing. It is longer than any ADD, or
// any write in flight.
const emptyHandleAge = 10 * time.Minute

// collectHandles deletes the handles that hold nothing. They come from a process that was killed while it created one,
// or from a creation that is applied after the container's DEL. A handle that names no host is deleted by the first
// host that finds it.
func (c *Client) collectHandles(ctx context.Context, what Collection, holding map[string]bool) error {
	var list api.IPAMHandleList
	if err := c.store.List(ctx, &list, datastore.ListOptions{Stale: true, NamesOnly: true}); err != nil {
		return fmt.Errorf("list handles: %w", err)
	}
	live := map[string]bool{}
	for _, id := range what.Live {
		live[names.Handle(id)] = true
	}
	var errs []error
	for i := range list.Items {
		name := list.Items[i].Name
		id, ok := strings.CutPrefix(name, names.Handle(what.Network+"."))
		if !ok || holding[name] || live[id] {
			continue
		}
		if err := c.removeEmptyHandle(ctx, name, what.Host); err != nil && !datastore.Contended(err) {
			errs = append(errs, fmt.Errorf("remove handle %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// removeEmptyHandle deletes a handle that is old, holds nothing and is not another host's. On etcd handles have no time
// of creation, so they stay.
func (c *Client) removeEmptyHandle(ctx context.Context, name, host string) error {
	h := &api.IPAMHandle{Meta: api.Meta{Name: name}}
	err := c.store.Get(ctx, h)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	created, err := time.Parse(time.RFC3339, h.CreationTimestamp)
	if err != nil || ofOther(h, host) || c.now().Sub(created) < emptyHandleAge {
		return nil
	}
	held, err := c.Holdings(ctx, h.Spec.HandleID)
	if err != nil || len(held) > 0 {
		return err
	}
	return c.store.Delete(ctx, h)
}

func (c *Client) collectConfig(ctx context.Context, known *Known) (api.IPAMConfigSpec, error) {
	if known != nil {
		return known.Config, nil
	}
	return c.readConfig(ctx)
}

// spares reports whether a holder keeps its addresses.
func (what *Collection) spares(h Holder) bool {
	id, ok := strings.CutPrefix(h.Handle, what.Network+".")
	if !ok || slices.Contains(what.Live, id) {
		return true
	}
	// A container without a timestamp is older than this program.
	at, err := time.Parse(timestampFormat, h.Attrs["timestamp"])
	return err == nil && !what.Before.IsZero() && !at.Before(what.Before)
}

// timestampFormat is the format of the attribute "timestamp": Go's time.Time.String, as Calico writes it.
const timestampFormat = "2006-01-02 15:04:05.999999999 -0700 MST"
