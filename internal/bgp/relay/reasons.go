package relay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// LostKept and NotBack are reasons about the paths of a peer that restarts gracefully.
const (
	LostKept = "connection lost; its paths are kept for its restart time"
	NotBack  = "it did not come back within its restart time, its paths are dropped"
)

// Neither begins the reason for which a passive link, whose peer does not connect, failed to connect, too.
const Neither = "it does not connect, and "

// Vague reports whether a reason only states that the session is gone, not the obstacle to the next one.
func Vague(reason string) bool { return reason == LostKept || reason == NotBack || reason == silent }

// dialFailure names the cause of a failed connect and where to look. refused: the kernel has refused segments for their
// signature since the session was up or configured. The text contains no numbers: the same failure must have the same
// text, or the time of its first occurrence is lost.
func dialFailure(p Peer, err error, refused bool) string {
	switch {
	case errors.Is(err, errNoInterface):
		return fmt.Sprintf("this node has no interface %s: correct the zone of peerIP, or select other nodes", p.Addr.Zone())
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("TCP refused on port %d: no BGP speaker listens there, or a firewall rejects", p.Port)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded):
		return noAnswer(p, refused)
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "host unreachable: the node is down or not on this network"
	case errors.Is(err, syscall.ENETUNREACH):
		return "network unreachable: this node has no route to it"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("our own address %s is not on this node any more: check the node address", p.From)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return "this node's own firewall does not let the connection out"
	}
	return "connect failed: " + err.Error()
}

// noAnswer lists the causes of a connection attempt without an answer. Both ends see a wrong password as silence.
func noAnswer(p Peer, refused bool) string {
	switch {
	case !p.signs():
		return fmt.Sprintf("no TCP answer on port %d: the node is down, a firewall drops, or it expects an MD5 password", p.Port)
	case refused:
		return fmt.Sprintf("no TCP answer on port %d, and this kernel refuses segments for their %s signature: %s", p.Port,
			p.option(), p.mismatch())
	}
	return fmt.Sprintf("no TCP answer on port %d: %s, the node is down, or a firewall drops", p.Port, p.mismatch())
}

// unsigned returns the reason for a passive session when the kernel refuses signatures.
func unsigned(p Peer) string {
	fact := "no connection from it, and this kernel refuses TCP segments for their " + p.option() + " signature: "
	if !p.signs() {
		return fact + "a peer uses an MD5 password where none is configured here, or the other way round"
	}
	return fact + p.mismatch()
}

// signs reports whether the peer's connections are signed.
func (p Peer) signs() bool { return p.Password != "" || p.AO != "" }

func (p Peer) option() string {
	if p.AO != "" {
		return "TCP-AO"
	}
	return "MD5"
}

// mismatch is the reason why the kernel refuses signatures of a peer's segments.
func (p Peer) mismatch() string {
	if p.AO != "" {
		return "TCP-AO key wrong or missing on one side"
	}
	return "MD5 password wrong or missing on one side"
}

// signatures reads how many segments of all sources the kernel has refused for their signatures. Many sessions share
// one reading.
type signatures struct {
	now func() time.Time

	mu    sync.Mutex // guards the rest
	at    time.Time
	count refusals
}

// refusals counts segments by the option that signs them.
type refusals struct{ md5, ao uint64 }

func (r refusals) of(p Peer) uint64 {
	if p.AO != "" {
		return r.ao
	}
	return r.md5
}

const signaturesAge = time.Second

func (s *signatures) read() refusals {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); now.Sub(s.at) >= signaturesAge || now.Before(s.at) {
		s.at, s.count = now, refusals{netlinkx.WrongPasswords(), netlinkx.ReadAO().Refused()}
	}
	return s.count
}
