package bgptest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Message types of RFC 4271.
const (
	Open byte = iota + 1
	Update
	Notification
	Keepalive
)

// Raw is a TCP connection to a speaker that sends arbitrary bytes, valid or not. Its encoding follows the RFCs and
// shares no code with the product.
type Raw struct {
	net.Conn
	host *Host
}

// rawTimeout is the limit for one response.
const rawTimeout = 20 * time.Second

// Dial connects to port 179 of a speaker from the host's address of the same family. It retries until the connection is
// accepted or Patience is over.
func (h *Host) Dial(to netip.Addr) *Raw {
	h.T.Helper()
	r := &Raw{host: h}
	Eventually(h.T, func() (err error) {
		r.Conn, err = h.TryDial(to)
		return err
	})
	return r
}

// TryDial makes one attempt to connect. The connection is closed with the test.
func (h *Host) TryDial(to netip.Addr) (net.Conn, error) {
	return h.DialFrom(h.from(to), netip.AddrPortFrom(to, 179))
}

// DialFrom is TryDial from any address to any port.
func (h *Host) DialFrom(from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	var conn net.Conn
	err := h.Do(func() (err error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: rawTimeout}
		conn, err = d.DialContext(h.T.Context(), "tcp", to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	h.T.Cleanup(func() { _ = conn.Close() })
	return conn, nil
}

// Listen listens on port 179 of one of the host's addresses until the test ends.
func (h *Host) Listen(addr netip.Addr) net.Listener {
	h.T.Helper()
	var l net.Listener
	h.Within(h.T, func() (err error) {
		l, err = new(net.ListenConfig).Listen(context.Background(), "tcp", netip.AddrPortFrom(addr, 179).String())
		return err
	})
	h.T.Cleanup(func() { _ = l.Close() })
	return l
}

// Accept accepts one connection.
func (h *Host) Accept(l net.Listener) *Raw {
	h.T.Helper()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(Patience))
	conn, err := l.Accept()
	errtest.Must(h.T, err)
	h.T.Cleanup(func() { _ = conn.Close() })
	return &Raw{Conn: conn, host: h}
}

// Message adds the header to a message body.
func Message(kind byte, body ...byte) []byte {
	m := bytes.Repeat([]byte{0xff}, 16)
	m = binary.BigEndian.AppendUint16(m, uint16(19+len(body)))
	m = append(m, kind)
	return append(m, body...)
}

// OpenMessage returns an OPEN with the capabilities of one family, four-octet AS numbers and, if restart is not 0,
// graceful restart.
func OpenMessage(asn uint32, id netip.Addr, v4 bool, hold, restart uint16) []byte {
	afi := byte(2)
	if v4 {
		afi = 1
	}
	caps := []byte{1, 4, 0, afi, 0, 1, 65, 4}
	caps = binary.BigEndian.AppendUint32(caps, asn)
	if restart > 0 {
		caps = append(caps, 64, 6, byte(restart>>8)&0x0f, byte(restart), 0, afi, 1, 0x80)
	}
	const asTrans = 23456
	short := uint16(asTrans)
	if asn < 1<<16 {
		short = uint16(asn)
	}
	body := binary.BigEndian.AppendUint16([]byte{4}, short)
	body = binary.BigEndian.AppendUint16(body, hold)
	body = append(body, id.AsSlice()...)
	body = append(body, byte(2+len(caps)), 2, byte(len(caps)))
	return Message(Open, append(body, caps...)...)
}

// UpdateMessage returns an IPv4 UPDATE with the attributes of an iBGP path.
func UpdateMessage(nextHop netip.Addr, localPref uint32, prefixes ...netip.Prefix) []byte {
	attrs := []byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 4}
	attrs = append(attrs, nextHop.AsSlice()...)
	attrs = append(attrs, 0x40, 5, 4)
	attrs = binary.BigEndian.AppendUint32(attrs, localPref)
	return Message(Update, UpdateBody(nil, attrs, NLRI(prefixes...))...)
}

// UpdateBody encodes the three parts of an UPDATE.
func UpdateBody(withdrawn, attrs, nlri []byte) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn)))
	body = append(body, withdrawn...)
	body = binary.BigEndian.AppendUint16(body, uint16(len(attrs)))
	body = append(body, attrs...)
	return append(body, nlri...)
}

// NLRI encodes prefixes as in an UPDATE.
func NLRI(prefixes ...netip.Prefix) []byte {
	var out []byte
	for _, p := range prefixes {
		out = append(out, byte(p.Bits()))
		out = append(out, p.Addr().AsSlice()[:(p.Bits()+7)/8]...)
	}
	return out
}

// Send writes bytes. It ignores a connection closed by the peer; Read reports that.
func (r *Raw) Send(data ...[]byte) {
	r.host.T.Helper()
	_ = r.SetWriteDeadline(time.Now().Add(rawTimeout))
	_, _ = r.Write(bytes.Join(data, nil))
}

// Read returns the next message, or the error of io.Reader at the end of the connection.
func (r *Raw) Read() (kind byte, body []byte, err error) {
	if err := r.SetReadDeadline(time.Now().Add(rawTimeout)); err != nil {
		return 0, nil, err
	}
	header := make([]byte, 19)
	if _, err := io.ReadFull(r.Conn, header); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint16(header[16:])
	if size < 19 || size > 4096 || !bytes.Equal(header[:16], bytes.Repeat([]byte{0xff}, 16)) {
		return 0, nil, fmt.Errorf("no header of a message: %x", header)
	}
	body = make([]byte, size-19)
	_, err = io.ReadFull(r.Conn, body)
	return header[18], body, err
}

// Until reads up to the next message of a type and returns its body.
func (r *Raw) Until(want byte) ([]byte, error) {
	for {
		kind, body, err := r.Read()
		if err != nil || kind == want {
			return body, err
		}
	}
}

// TryHandshake establishes a session as AS asn, and returns the body of the speaker's OPEN.
func (r *Raw) TryHandshake(asn uint32, restart uint16) ([]byte, error) {
	local, err := netip.ParseAddrPort(r.LocalAddr().String())
	if err != nil {
		return nil, err
	}
	r.Send(OpenMessage(asn, r.host.V4, local.Addr().Is4(), 90, restart))
	open, err := r.Until(Open)
	if err != nil {
		return nil, fmt.Errorf("wait for an OPEN: %w", err)
	}
	r.Send(Message(Keepalive))
	if _, err := r.Until(Keepalive); err != nil {
		return nil, fmt.Errorf("wait for a KEEPALIVE: %w", err)
	}
	return open, nil
}

// Establish connects and establishes a session. It retries, as a speaker may still be closing the session before.
func (h *Host) Establish(to netip.Addr, asn uint32, restart uint16) (session *Raw, open []byte) {
	h.T.Helper()
	Eventually(h.T, func() error {
		conn, err := h.TryDial(to)
		if err != nil {
			return err
		}
		session = &Raw{Conn: conn, host: h}
		if open, err = session.TryHandshake(asn, restart); err != nil {
			return errors.Join(err, conn.Close())
		}
		return nil
	})
	return session, open
}

// Capabilities returns the values of an OPEN's capabilities by their codes.
func Capabilities(open []byte) (map[byte][]byte, error) {
	if len(open) < 10 || int(open[9]) != len(open)-10 {
		return nil, fmt.Errorf("parameters of an OPEN: %x", open)
	}
	found := map[byte][]byte{}
	for rest := open[10:]; len(rest) > 0; {
		if len(rest) < 2 || len(rest) < 2+int(rest[1]) || rest[0] != 2 {
			return nil, fmt.Errorf("parameters of an OPEN: %x", open)
		}
		caps := rest[2 : 2+int(rest[1])]
		rest = rest[2+int(rest[1]):]
		for len(caps) > 0 {
			if len(caps) < 2 || len(caps) < 2+int(caps[1]) {
				return nil, fmt.Errorf("capabilities of an OPEN: %x", open)
			}
			found[caps[0]] = caps[2 : 2+int(caps[1])]
			caps = caps[2+int(caps[1]):]
		}
	}
	return found, nil
}
