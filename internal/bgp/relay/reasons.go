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

// dialFailure names the cause of a failed connect and where to look. refused says that the kernel has refused segments for
// their MD5 signature since the session was up or configured. The text contains no numbers: the same failure
// must have the same text, or the time of its first occurrence is lost.
func dialFailure(p Peer, err error, refused bool) string {
	switch {
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
	case p.Password == "":
		return fmt.Sprintf("no TCP answer on port %d: the node is down, a firewall drops, or it expects an MD5 password", p.Port)
	case refused:
		return fmt.Sprintf("no TCP answer on port %d, and this kernel refuses segments for their MD5 signature: MD5 password wrong or missing on one side", p.Port)
	}
	return fmt.Sprintf("no TCP answer on port %d: MD5 password wrong or missing on one side, the node is down, or a firewall drops", p.Port)
}

// unsigned says what a passive session sees of a wrong password.
func unsigned(p Peer) string {
	const fact = "no connection from it, and this kernel refuses TCP segments for their MD5 signature: "
	if p.Password == "" {
		return fact + "a peer uses an MD5 password where none is configured here, or the other way round"
	}
	return fact + "MD5 password wrong or missing on one side"
}

// md5Counter reads how many segments the kernel has refused for their MD5 signatures, from whomever. Many sessions ask, one
// reads.
type md5Counter struct {
	now func() time.Time

	mu    sync.Mutex // guards the rest
	at    time.Time
	count uint64
}

const md5CounterAge = time.Second

func (c *md5Counter) read() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Sub(c.at) >= md5CounterAge || now.Before(c.at) {
		c.at, c.count = now, netlinkx.WrongPasswords()
	}
	return c.count
}
