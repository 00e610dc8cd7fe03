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

// releaseTime bounds DEL's work at the datastore. A node may be drained, or a namespace deleted, while the API server
// is away: no container waits longer for it.
const releaseTime = 10 * time.Second

// del removes a pod's link and releases its addresses. It succeeds if they are gone already: runtimes repeat DEL until
// it succeeds. If the datastore is away, the release is postponed once the kernel has nothing of the pod.
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

// release clears the container's addresses on its endpoint, and frees them once removed has succeeded. If the error
// wraps a postponed, only work at the datastore is left.
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

// forget deletes the conntrack entries of released addresses, except known ones: the removal of their link has deleted
// them.
func (s *session) forget(known []netip.Addr) {
	left := slices.DeleteFunc(slices.Clone(s.freed), func(a netip.Addr) bool { return slices.Contains(known, a) })
	if len(left) == 0 {
		return
	}
	if err := podnet.Forget(left); err != nil {
		s.log.Warn("cannot delete conntrack entries of released addresses", "addresses", left, "err", err)
	}
}

// postponed is an error after which DEL's work at the datastore can be done later.
type postponed struct{ error }

func (p *postponed) Unwrap() error { return p.error }

// postponable wraps err in a postponed if the datastore or the time for it caused it.
func postponable(err error) error {
	for _, reason := range []error{datastore.ErrUnavailable, datastore.ErrUnauthorized, errDatastoreNotReady, context.DeadlineExceeded} {
		if errors.Is(err, reason) {
			return &postponed{err}
		}
	}
	return err
}

// postpone puts the release into the journal, for the agent and later DELs and GCs.
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

// catchUpTime bounds one DEL's work for others.
const catchUpTime = 5 * time.Second

// catchUp finishes the releases that earlier DELs postponed. The agent does that while it runs.
func (s *session) catchUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	if err := journal.DefaultDir.Each(ctx, func(e journal.Entry) error { return s.finish(ctx, e) }); err != nil {
		s.log.Warn("cannot release what earlier DELs left", "err", err)
	}
}

// finish finishes another container's DEL.
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
