package diagnose

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// vxlanEnd is this node's VTEP of a family.
type vxlanEnd struct {
	addr   netip.Addr
	device string
	port   uint16
}

// echoBetween sends ICMP echo requests from this node's VTEP to another, through the VXLAN device: the kernel
// encapsulates them as pods' packets.
func (p *prober) echoBetween(ctx context.Context, to netip.Addr) Probe {
	end, ok := p.ends[to.Is4()]
	if !ok {
		return Probe{}
	}
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		control := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), end.device) })
		return errors.Join(err, control)
	}}
	if end.addr.IsValid() {
		d.LocalAddr = &net.IPAddr{IP: end.addr.AsSlice()}
	}
	network := "ip6:58"
	if to.Is4() {
		network = "ip4:1"
	}
	conn, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	return askEcho(ctx, conn, to)
}

// strangeVNI is a VXLAN header with a VNI not in use: the other end receives the packet and drops it.
var strangeVNI = []byte{0x08, 0, 0, 0, 0xff, 0xff, 0xfe, 0}

// knock sends a packet to VXLAN's port. No answer is the best result: a kernel without the device reports that the port
// is closed.
func (p *prober) knock(ctx context.Context, to netip.Addr) Probe {
	end, ok := p.ends[to.Is4()]
	if !ok {
		return Probe{}
	}
	var d net.Dialer
	if from := p.from[to.Is4()]; from.IsValid() {
		d.LocalAddr = &net.UDPAddr{IP: from.AsSlice()}
	}
	conn, err := d.DialContext(ctx, "udp", net.JoinHostPort(to.String(), strconv.Itoa(int(end.port))))
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	if _, err := conn.Write(strangeVNI); err != nil {
		return outcome(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(answerTime))
	if _, err := conn.Read(make([]byte, 64)); err != nil {
		return outcome(err)
	}
	return Probe{Outcome: Answered}
}
