package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/plugin/journal"
)

// releaseTime bounds what DEL does at the datastore. A node is drained, or a namespace deleted, while the API server is
// away: no container has to wait for it longer than this.
const releaseTime = 10 * time.Second

// del takes away a pod's link and address. It succeeds if they are gone already: a runtime repeats DEL until it does.
// What the datastore cannot be told now is put down for later, once the kernel has nothing of the pod any more.
func del(ctx context.Context, c *call) error {
	s, err := c.open()
	if err != nil {
		return err
	}
	if err := spareNode(s.netns); err != nil {
		return err
	}
	var had []netip.Addr
	removed := begin(func() (err error) {
		had, err = s.removeInterface(ctx)
		return err
	})
	released := s.release(ctx, removed)
	err = removed()
	if errors.Is(err, errHasInterface) {
		c.log.Info("address not released: the container still has an interface", "why", err)
		return nil
	}
	if err != nil {
		return err
	}
	s.forget(had)
	var later *postponed
	if errors.As(released, &later) {
		return s.postpone(ctx, later)
	}
	if released == nil && s.facts == nil {
		s.catchUp(ctx)
	}
	return released
}

// release tells the datastore that the container has no address any more, and frees it once removed has succeeded. An
// error that wraps a postponed leaves nothing but work at the datastore.
func (s *session) release(ctx context.Context, removed func() error) error {
	noted := begin(func() error {
		ctx, cancel := context.WithTimeout(ctx, releaseTime)
		defer cancel()
		if err := s.ready(ctx); err != nil {
			return err
		}
		if err := s.endpoint().clear(ctx); err != nil {
			return fmt.Errorf("note on the pod that its address is released: %w", err)
		}
		return nil
	})
	return s.addressing().del(ctx, clearance{removed: removed, noted: noted})
}

// forget ends the connections of addresses that were released though the kernel had no link with them any more.
func (s *session) forget(known []netip.Addr) {
	left := slices.DeleteFunc(slices.Clone(s.freed), func(a netip.Addr) bool { return slices.Contains(known, a) })
	if len(left) == 0 {
		return
	}
	if err := podnet.Forget(left); err != nil {
		s.log.Warn("cannot delete conntrack entries of released addresses", "addresses", left, "err", err)
	}
}

// postponed is why the datastore cannot be told anything now.
type postponed struct{ error }

func (p *postponed) Unwrap() error { return p.error }

// postponable marks an error after which all that a DEL has to do at the datastore can be done later.
func postponable(err error) error {
	for _, reason := range []error{datastore.ErrUnavailable, datastore.ErrUnauthorized, errDatastoreNotReady, context.DeadlineExceeded} {
		if errors.Is(err, reason) {
			return &postponed{err}
		}
	}
	return err
}

// postpone writes down what is left to do, for the agent and later DELs and GCs.
func (s *session) postpone(ctx context.Context, why error) error {
	tellRefusal(s.log, why) // it ends here: the verb succeeds
	err := journal.DefaultDir.Add(ctx, journal.Entry{
		Handle:      s.handle(),
		Datastore:   s.datastore(),
		Network:     s.conf.Name,
		Namespace:   s.namespace,
		Pod:         s.pod,
		ContainerID: s.containerID,
		IfName:      s.ifName,
		Time:        time.Now(),
		Reason:      why.Error(),
	})
	if err != nil {
		return fmt.Errorf("%w; nor could it be put down for later: %s", why, err.Error())
	}
	s.log.Warn("address not released, left to the agent", "handle", s.handle(), "err", why)
	return nil
}

// catchUpTime bounds what one DEL does for others.
const catchUpTime = 5 * time.Second

// catchUp finishes what earlier DELs have put down. The agent does that while it runs.
func (s *session) catchUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	if err := journal.DefaultDir.Each(ctx, func(e journal.Entry) error { return s.finish(ctx, e) }); err != nil {
		s.log.Warn("cannot release what earlier DELs left", "err", err)
	}
}

// finish does what is left of another container's DEL.
func (s *session) finish(ctx context.Context, e journal.Entry) error {
	if e.Datastore != s.datastore() {
		return journal.ErrKeep
	}
	err := s.of(e).release(ctx, cleared.removed)
	var later *postponed
	if errors.As(err, &later) {
		return fmt.Errorf("%w: %w", journal.ErrStop, err)
	}
	return err
}

// of returns a session for another container.
func (s *session) of(e journal.Entry) *session {
	other := *s
	other.conf.Name, other.conf.IPAM.Type = e.Network, calicoIPAM // another plugin's part was done at once
	other.namespace, other.pod, other.containerID, other.ifName = e.Namespace, e.Pod, e.ContainerID, e.IfName
	return &other
}

// handle is the name under which the container holds its addresses.
func (s *session) handle() string { return names.PodHandle(s.conf.Name, s.containerID) }

// datastore is the type of the session's datastore.
func (s *session) datastore() string { return s.conf.DatastoreType }
