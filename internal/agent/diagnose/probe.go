package diagnose

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/bgp/peering"
)

const (
	// connectTime bounds one attempt to connect, answerTime one request by ICMP or IPIP; tries is the number of requests.
	connectTime = 3 * time.Second
	answerTime  = 700 * time.Millisecond
	tries       = 3
	// workers is how many peers are probed at once.
	workers = 192
)

// sizes are common MTUs, tried to find the path MTU.
var sizes = []int{9000, 8950, 8500, 4000, 1500, 1492, 1480, 1476, 1460, 1450, 1440, 1430, 1420, 1400, 1380, 1340, 1300, 1280, 1000, 576}

// prober probes peers. Its addresses are this node's; for an invalid one the kernel chooses.
type prober struct {
	from   map[bool]netip.Addr // by "is IPv4"
	tunnel netip.Addr          // tunl0's own address
	ends   map[bool]vxlanEnd   // of VXLAN, by "is IPv4"
}

// probeAll probes the peers, many at a time. Without time left, peers stay unprobed.
func (p *prober) probeAll(ctx context.Context, peers []Peer) {
	var group sync.WaitGroup
	turns := make(chan struct{}, workers)
	for i := range peers {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			group.Wait()
			return
		}
		group.Go(func() {
			defer func() { <-turns }()
			p.probe(ctx, &peers[i])
		})
	}
	group.Wait()
}

// probe makes all probes of one peer at once.
func (p *prober) probe(ctx context.Context, peer *Peer) {
	if peering.Learns(peer.Addr) {
		return // the agent does not know its address
	}
	var group sync.WaitGroup
	if peer.Session != established {
		group.Go(func() { peer.TCP = p.connect(ctx, peer.Addr, peer.Port) })
	}
	if peer.Tunnelled && peer.Addr.Is4() {
		group.Go(func() { peer.IPIP = p.askInside(ctx, peer.Addr) })
	}
	if peer.VTEP.IsValid() {
		group.Go(func() { peer.VXLAN = p.echoBetween(ctx, peer.VTEP) })
		group.Go(func() { peer.UDP = p.knock(ctx, peer.Addr) })
	}
	group.Go(func() {
		if peer.Echo = p.echo(ctx, peer.Addr); peer.Echo.Outcome == Answered && peer.WantSize > 0 {
			peer.GotSize = p.largest(ctx, peer.Addr, peer.WantSize)
		}
	})
	group.Wait()
	peer.Probed = ctx.Err() == nil
}

// sourceTo returns the node's address in a peer's family; invalid for a link-local peer, which knows this node by a
// link-local address too.
func (p *prober) sourceTo(to netip.Addr) netip.Addr {
	if to.IsLinkLocalUnicast() {
		return netip.Addr{}
	}
	return p.from[to.Is4()]
}

// connect opens a TCP connection and closes it.
func (p *prober) connect(ctx context.Context, to netip.Addr, port uint16) Probe {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	d := net.Dialer{KeepAlive: -1}
	if from := p.sourceTo(to); from.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
	}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(to.String(), strconv.Itoa(int(port))))
	if err != nil {
		return outcome(err)
	}
	conn.Close()
	return Probe{Outcome: Answered}
}

// outcome converts an error of a socket.
func outcome(err error) Probe {
	result := Probe{Outcome: Impossible, Detail: err.Error()}
	var number syscall.Errno
	switch call := (*os.SyscallError)(nil); {
	case errors.As(err, &call) && call.Syscall == "socket": // before any packet: not a firewall, but a missing capability
	case errors.As(err, &number):
		result.Detail = number.Error()
		result.Outcome = meaning[number]
		if result.Outcome == notAProbe {
			result.Outcome = Impossible
		}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		result = Probe{Outcome: Silent}
	}
	return result
}

// meaning has outcomes by errors, to which the kernel converts ICMP messages.
var meaning = map[syscall.Errno]Outcome{
	syscall.ECONNREFUSED: Refused, syscall.ECONNRESET: Refused,
	syscall.ETIMEDOUT: Silent, syscall.EHOSTUNREACH: NoWay, syscall.ENETUNREACH: NoWay, syscall.EHOSTDOWN: NoWay,
	syscall.ENOPROTOOPT: NoProtocol, syscall.EPERM: NotAllowed, syscall.EACCES: NotAllowed,
}

// raw opens a socket of an IP protocol to a peer. It reports ICMP errors, and never fragments: the kernel refuses
// packets that are too large for the first link.
func (p *prober) raw(ctx context.Context, network string, to netip.Addr) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		control := c.Control(func(fd uintptr) {
			if to.Is4() {
				err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1),
					unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE))
				return
			}
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
		})
		return errors.Join(err, control)
	}}
	if from := p.sourceTo(to); from.IsValid() {
		d.LocalAddr = &net.IPAddr{IP: from.AsSlice()}
	}
	return d.DialContext(ctx, network, to.String())
}

func (p *prober) icmp(ctx context.Context, to netip.Addr) (net.Conn, error) {
	if to.Is4() {
		return p.raw(ctx, "ip4:1", to)
	}
	return p.raw(ctx, "ip6:58", to)
}

// echo sends ICMP echo requests.
func (p *prober) echo(ctx context.Context, to netip.Addr) Probe {
	conn, err := p.icmp(ctx, to)
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	return askEcho(ctx, conn, to)
}

// askEcho sends ICMP echo requests on a raw socket.
func askEcho(ctx context.Context, conn net.Conn, to netip.Addr) Probe {
	id := newID()
	return ask(ctx, conn, func(try int) []byte { return echoRequest(to.Is4(), id, uint16(try), 64) }, func(b []byte) bool {
		_, ok := echoReply(stripped(b, to.Is4()), to.Is4(), id)
		return ok
	})
}

// ask sends questions until one is answered.
func ask(ctx context.Context, conn net.Conn, question func(try int) []byte, answers func([]byte) bool) Probe {
	b := make([]byte, 65536)
	last := Probe{Outcome: Silent}
	for try := range tries {
		if ctx.Err() != nil {
			return last
		}
		if _, err := conn.Write(question(try)); err != nil {
			last = outcome(err)
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(answerTime))
		for {
			n, err := conn.Read(b)
			if err != nil {
				if o := outcome(err); o.Outcome != Silent || try == 0 {
					last = o
				}
				break
			}
			if answers(b[:n]) {
				return Probe{Outcome: Answered}
			}
		}
	}
	return last
}

// stripped removes the IP header, which only IPv4 raw sockets deliver.
func stripped(b []byte, is4 bool) []byte {
	if !is4 {
		return b
	}
	_, body := inside(b)
	return body
}

func newID() uint16 { return uint16(rand.N(1 << 16)) }

// largest returns the size of the largest packet that a peer answers, up to want; 0 if none. All sizes are sent at
// once, up to tries times.
func (p *prober) largest(ctx context.Context, to netip.Addr, want int) int {
	conn, err := p.icmp(ctx, to)
	if err != nil {
		return 0
	}
	defer conn.Close()
	id, header, got := newID(), ipv6Header, 0
	if to.Is4() {
		header = ipv4Header
	}
	b := make([]byte, 65536)
	for try := 0; try < tries && got < want && ctx.Err() == nil; try++ {
		for _, size := range append([]int{want}, sizes...) {
			if size <= want && size > got {
				_, _ = conn.Write(echoRequest(to.Is4(), id, uint16(size), size-header)) // a size that the first link refuses is unanswered
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(answerTime))
		for got < want {
			n, err := conn.Read(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				continue // a router's message that a packet is too large
			}
			if seq, ok := echoReply(stripped(b[:n], to.Is4()), to.Is4(), id); ok {
				got = max(got, int(seq))
			}
		}
	}
	return got
}

// askInside sends ICMP echo requests inside of IPIP, as pods' packets travel, from the tunnel's address to the node's
// own: the peer's kernel decapsulates them. The answer comes in the tunnel too, or without it if the peer reaches this
// node's tunnel address that way.
func (p *prober) askInside(ctx context.Context, to netip.Addr) Probe {
	outer, err := p.raw(ctx, "ip4:4", to)
	if err != nil {
		return outcome(err)
	}
	defer outer.Close()
	src := p.tunnel
	if !src.IsValid() {
		src, _ = netip.AddrFromSlice(outer.LocalAddr().(*net.IPAddr).IP.To4())
	}
	id := newID()
	heard := listenPlain(ctx, src, id)
	result := ask(ctx, outer, func(try int) []byte {
		return ipv4Packet(src, to, protocolICMP, echoRequest(true, id, uint16(try), 64))
	}, func(b []byte) bool {
		_, inner := inside(b)
		protocol, message := inside(inner)
		_, ok := echoReply(message, true, id)
		return ok && protocol == protocolICMP
	})
	if came := heard(); came && result.Outcome != Answered {
		return Probe{Outcome: Answered, Detail: "the answer came without a tunnel"}
	}
	return result
}

// listenPlain listens for the answer without a tunnel. The returned function stops listening, and reports whether the
// answer came.
func listenPlain(ctx context.Context, on netip.Addr, id uint16) (heard func() bool) {
	conn, err := new(net.ListenConfig).ListenPacket(ctx, "ip4:1", on.String())
	if err != nil {
		return func() bool { return false }
	}
	came := make(chan bool, 1)
	go func() {
		b := make([]byte, 2048)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				came <- false
				return
			}
			if _, ok := echoReply(b[:n], true, id); ok {
				came <- true
				return
			}
		}
	}()
	return func() bool {
		conn.Close()
		return <-came
	}
}
