package bgp

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// behind implements relay.Behind by GoBGP, for one peer.
type behind struct {
	*Server
	*place
	inside inside
}

// attachPause is the wait between attempts to connect to GoBGP, which closes connections that come too early.
const attachPause = 10 * time.Millisecond

// Ready implements relay.Behind. It does not wait for a new neighbour: GoBGP makes that active before the peer's
// handshake ends.
func (b behind) Ready(ctx context.Context) error {
	if fresh, err := b.enter(ctx); fresh || err != nil {
		return err
	}
	return b.active(ctx)
}

// active waits until GoBGP's neighbour can accept a connection.
func (b behind) active(ctx context.Context) error {
	for b.neighbours.state(b.alias) != api.PeerState_ACTIVE {
		if !wait.Sleep(ctx, attachPause) {
			return fmt.Errorf("it is not ready: %w", ctx.Err())
		}
	}
	return nil
}

// Attach implements relay.Behind.
func (b behind) Attach(ctx context.Context, open []byte) (net.Conn, error) {
	for {
		conn, err := b.attach(ctx, open)
		if err == nil {
			return conn, nil
		}
		if !wait.Sleep(ctx, attachPause) {
			return nil, err
		}
	}
}

func (b behind) attach(ctx context.Context, open []byte) (net.Conn, error) {
	if _, err := b.enter(ctx); err != nil {
		return nil, err
	}
	if err := b.active(ctx); err != nil {
		return nil, err
	}
	// GoBGP stays in Idle for five seconds after a session unless there was a reset, and then for the configured time; see
	// idleHoldTime. In Active a reset does nothing else, and only the connection that follows ends Active.
	if err := b.bgp.ResetPeer(ctx, &api.ResetPeerRequest{Address: b.alias.String()}); err != nil {
		return nil, err
	}
	conn, err := b.inside.dial(ctx, b.alias)
	if err != nil {
		return nil, err
	}
	if err := introduce(ctx, conn, open); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// introduce has GoBGP open the session. GoBGP's OPEN repeats the relay's OPEN to the peer. After GoBGP's KEEPALIVE it
// forwards the peer's messages only, so that the session is up: GoBGP drops the kept paths of a peer when a session
// ends that did not come up.
func introduce(ctx context.Context, conn net.Conn, open []byte) error {
	deadline, _ := ctx.Deadline() // no deadline: the zero time, which means the same for a connection
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write(append(bytes.Clone(open), wire.NewKeepalive()...)); err != nil {
		return err
	}
	buf := make([]byte, wire.Room)
	for _, want := range []wire.Type{wire.Open, wire.Keepalive} {
		message, err := wire.Read(conn, buf)
		if err != nil {
			return fmt.Errorf("read its message of type %d: %w", want, err)
		}
		if kind := wire.TypeOf(message); kind != want {
			return fmt.Errorf("message of type %d, want %d", kind, want)
		}
	}
	return conn.SetDeadline(time.Time{})
}

// Throttle implements relay.Behind.
func (b behind) Throttle(ctx context.Context, update []byte) {
	b.window.take(ctx)
	b.window.name(update)
}

// Drain implements relay.Behind.
func (b behind) Drain(ctx context.Context) { b.window.drain(ctx) }

// Session implements relay.Behind.
func (b behind) Session(up bool) {
	b.ends.state(b.peer, up)
	b.window.forget()
	b.version.Add(1)
	b.wake()
}

// Ended implements relay.Behind.
func (b behind) Ended(end relay.End) { b.tell(b.ends.ended(b.peer, end), end.Reason) }

// Failed implements relay.Behind.
func (b behind) Failed(reason string) { b.tell(b.ends.failed(b.peer, reason), reason) }

// tell logs why a session is not established and signals Dirty, if news is set.
func (b behind) tell(news bool, reason string) {
	if news {
		b.log.Info("BGP session is not established", "peer", b.peer, "reason", reason)
		b.wake()
	}
}

// inside is the address of GoBGP's listener. Every process on this host can connect to it from any of the peers'
// addresses there, so both ends sign their segments (TCP MD5) with a secret that only this process knows.
type inside struct {
	to     netip.AddrPort
	secret string // empty: the kernel has no TCP MD5
}

func (i inside) dial(ctx context.Context, from netip.Addr) (net.Conn, error) {
	dialer := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		Control: func(_, _ string, raw syscall.RawConn) error {
			if i.secret == "" {
				return nil
			}
			return relay.SetKey(raw, netip.PrefixFrom(i.to.Addr(), i.to.Addr().BitLen()), i.secret)
		},
	}
	return dialer.DialContext(ctx, "tcp4", i.to.String())
}

// newInside chooses a free port, and a secret unless noMD5 is set.
func newInside(noMD5 error) (inside, error) {
	l, err := net.Listen("tcp4", netip.AddrPortFrom(gobgpAddr, 0).String())
	if err != nil {
		return inside{}, fmt.Errorf("find a port on the loopback interface: %w", err)
	}
	defer l.Close()
	i := inside{to: l.Addr().(*net.TCPAddr).AddrPort()}
	if noMD5 == nil {
		i.secret = rand.Text()
	}
	return i, nil
}

// lock sets the secret on GoBGP's listener. GoBGP sets a key for each peer, of which a socket can have only some
// hundred (net.core.optmem_max), and cannot set one for all; so lock finds its socket among this process's file
// descriptors.
func (i inside) lock() error {
	if i.secret == "" {
		return nil
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, file := range files {
		if fd, err := strconv.Atoi(filepath.Base(file.Name())); err == nil && i.listens(fd) {
			return relay.SetKeyOf(fd, loopback, i.secret)
		}
	}
	return errors.New("GoBGP's listener is not among this process's files")
}

// listens reports whether fd is the listener.
func (i inside) listens(fd int) bool {
	listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listening == 0 {
		return false
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	four, ok := name.(*unix.SockaddrInet4)
	return ok && netip.AddrPortFrom(netip.AddrFrom4(four.Addr), uint16(four.Port)) == i.to
}
