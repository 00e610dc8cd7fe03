package relay

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// mostHanding is how many sessions are handed over at a time: a thousand at once would make each wait for all others.
const mostHanding = 16

// hand hands over to the speaker behind what it has to know of the peer once others are to be told: the session, if the
// relay carries it alone, and what is kept of sessions before. After a failure it tries again, for as long as there is
// something to hand over.
func (l *Link) hand() {
	pauses := wait.Backoff{First: time.Second, Most: 10 * time.Second}
	for {
		select {
		case l.relay.handing <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		done := l.handOnce()
		<-l.relay.handing
		if done || !wait.Sleep(l.ctx, pauses.Next()) {
			return
		}
	}
}

// handOnce reports whether there is nothing left to hand over.
func (l *Link) handOnce() bool {
	l.attaching.Lock()
	defer l.attaching.Unlock()
	ctx, cancel := context.WithTimeout(l.ctx, attachTimeout)
	defer cancel()
	s := l.session()
	switch {
	case !l.rules.Load().Told:
		return true
	case s != nil && s.alone.Load():
		if err := l.handSession(ctx, s); err != nil {
			l.relay.log.Warn("a BGP session is not passed on to GoBGP yet", "peer", l.peer.Addr, "error", err)
			return false
		}
		return true
	}
	return l.tellKept(ctx)
}

// handSession has the speaker behind take a session that goes on. The peer is told once more what this node originates,
// by the speaker, and notices nothing else: of what changes meanwhile the relay tells it until the speaker does.
func (l *Link) handSession(ctx context.Context, s *session) error {
	back, err := l.behind.Attach(ctx, s.first)
	if err != nil {
		return err
	}
	if err := l.behind.Announces(ctx); err != nil {
		return errors.Join(err, back.Close())
	}
	s.endAlone()
	s.in.order.Lock()
	defer s.in.order.Unlock()
	if !s.start(back) {
		return back.Close() // it is over; what is kept of it is handed over next
	}
	s.judge(l.ctx, 0, untouched)
	return nil
}

// tellKept tells the speaker behind of what is kept of a peer that restarts, if it was not told while the peer had a
// session: in one without the peer, which breaks at the end, so that the speaker keeps the paths for what is left of
// the restart time. A peer that has a session again announces them itself.
func (l *Link) tellKept(ctx context.Context) bool {
	s, open := l.restored()
	if s == nil {
		return true
	}
	back, err := l.behind.Attach(ctx, open.Bytes(s.families, false))
	if err != nil {
		l.failed("our own speaker does not take the session: " + err.Error())
		return false
	}
	go func() { _, _ = io.Copy(io.Discard, back) }() // ends with the connection
	s.in.live, s.in.back = true, back
	told := s.judgeAgain(ctx, 0, untouched)
	l.behind.Drain(ctx)
	_ = back.Close()
	if told {
		l.noteTold()
	}
	return told
}

// noteTold notes that the speaker behind has all that is kept.
func (l *Link) noteTold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = maps.Clone(l.kept) // the one is read by Paths
	for prefix, p := range l.kept {
		p.untold = false
		l.kept[prefix] = p
	}
}

// restored returns a session in which the peer has announced what is kept and untold, and the peer's OPEN for that;
// nil: there is nothing to tell.
func (l *Link) restored() (s *session, open wire.LocalOpen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.keptUntil.Sub(l.relay.now())
	if l.retired || left <= 0 || !l.rules.Load().Told {
		return nil, open
	}
	var router netip.Addr
	for prefix, p := range l.kept {
		if p.untold {
			if s == nil {
				s = newSession(l, nil, false)
			}
			s.wire.Restore(prefix, p.Said)
			router = p.Router
		}
	}
	return s, wire.LocalOpen{
		ASN: l.peer.ASN, ID: router, HoldTime: uint16(l.peer.HoldTime / time.Second),
		RestartTime: uint16((left + time.Second - 1) / time.Second), Restart: wire.Restart{Restarted: true, Preserved: true},
	}
}
