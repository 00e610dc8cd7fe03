package relay

import (
	"context"
	"io"
	"maps"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// tellKept tells the speaker behind of what is kept of a peer that restarts, if others are to be told and it was not told while the peer had
// a session: in one without the peer, which breaks at the end, so that the speaker keeps the paths for what is left of the restart time. A
// peer that has a session again announces them itself. After a failure it tries again, as long as the paths are kept.
func (l *Link) tellKept() {
	pauses := wait.Backoff{First: time.Second, Most: 10 * time.Second}
	for !l.tellKeptOnce() && wait.Sleep(l.ctx, pauses.Next()) {
		continue
	}
}

// tellKeptOnce reports whether there is nothing left to tell.
func (l *Link) tellKeptOnce() bool {
	l.attaching.Lock()
	defer l.attaching.Unlock()
	s, open := l.restored()
	if s == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(l.ctx, attachTimeout)
	defer cancel()
	back, err := l.behind.Attach(ctx, open.Bytes(s.families, false))
	if err != nil {
		l.failed("our own speaker does not take the session: " + err.Error())
		return false
	}
	go func() { _, _ = io.Copy(io.Discard, back) }() // ends with the connection
	s.setBack(back)
	told := s.judgeAgain(ctx, 0, all)
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

// restored returns a session in which the peer has announced what is kept and untold, and the peer's OPEN for that; nil: there is nothing to tell.
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
