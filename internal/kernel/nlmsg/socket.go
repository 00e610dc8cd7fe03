package nlmsg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInterrupted says that the kernel's table changed while it was listed, so that the list may be wrong.
var ErrInterrupted = errors.New("the table changed while the kernel listed it")

// Socket is a netlink socket. It is for one goroutine at a time.
type Socket struct {
	// Port is by which the kernel names the socket in events.
	Port uint32
	// Seq is the number of the last request.
	Seq uint32
	// Broken: answers may still be under way, so that the socket must not be used again.
	Broken bool

	fd      int
	timeout time.Duration
	request []byte
	answer  *[answerSize]byte
}

// The kernel fills at most 32 KiB of a dump into one datagram, as long as there is room for it.
const answerSize = 64 << 10

// answers are buffers of closed sockets: nft opens a socket for each look.
var answers = sync.Pool{New: func() any { return new([answerSize]byte) }}

// Open opens a socket in the network namespace of the calling thread. timeout bounds each system call.
func Open(protocol int, timeout time.Duration) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &Socket{fd: fd, timeout: timeout, answer: answers.Get().(*[answerSize]byte)}
	if err := s.setUp(); err != nil {
		s.Close()
		return nil, fmt.Errorf("set up netlink socket: %w", err)
	}
	return s, nil
}

func (s *Socket) setUp() error {
	timeout := unix.NsecToTimeval(s.timeout.Nanoseconds())
	err := errors.Join(
		// Without it an answer that says what failed repeats the request.
		unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		// With it the answer tells which attribute failed.
		unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1),
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout),
		unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
	)
	if err != nil {
		return err
	}
	own, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	if a, ok := own.(*unix.SockaddrNetlink); ok {
		s.Port = a.Pid
	}
	// The kernel applies the filter of a dump. Before Linux 4.20 there is no such option, and dumps are of everything.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return nil
}

// Close closes the socket.
func (s *Socket) Close() {
	_ = unix.Close(s.fd)
	answers.Put(s.answer)
}

// setSendBuffer makes room for messages of size bytes that are sent at once.
func (s *Socket) setSendBuffer(size int) error {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
}

// Request returns the buffer for the next messages to be sent.
func (s *Socket) Request() []byte { return s.request[:0] }

// Send sends messages, which are made in Request.
func (s *Socket) Send(messages []byte) error {
	s.request = messages
	if err := unix.Sendto(s.fd, messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		s.Broken = true
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// Receive hands the messages that answer requests from first on to take, until that says that it has all. What take
// gets is overwritten by the next datagram.
func (s *Socket) Receive(first uint32, take func(Message) (done bool, err error)) error {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.answer[:], unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			err = fmt.Errorf("no answer within %s: %w", s.timeout, os.ErrDeadlineExceeded)
		case err == nil && n > len(s.answer):
			err = fmt.Errorf("%w: datagram of %d bytes", ErrMalformed, n)
		}
		if err != nil {
			s.Broken = true
			return fmt.Errorf("receive: %w", err)
		}
		done, err := s.take(s.answer[:n], first, take)
		if err != nil || done {
			return err
		}
	}
}

// take goes through one datagram.
func (s *Socket) take(datagram []byte, first uint32, take func(Message) (done bool, err error)) (bool, error) {
	for len(datagram) > 0 {
		m, rest, err := Next(datagram)
		if err != nil {
			s.Broken = true
			return false, err
		}
		datagram = rest
		if m.Seq-first > s.Seq-first { // of an earlier request
			continue
		}
		done, err := take(m)
		if err != nil {
			s.Broken = true // what is left of the answer is still to come
		}
		if err != nil || done {
			return done, err
		}
	}
	return false, nil
}

// Execute sends a request and hands the messages that answer it to take: all of a dump, all up to the acknowledgement
// for a request with NLM_F_ACK, else one.
// The error is ErrInterrupted if all of a dump was taken, but of different states of the table.
func (s *Socket) Execute(m Message, take func(Message) error) error {
	s.Seq++
	if err := s.Send(m.Append(s.Request(), s.Seq)); err != nil {
		return err
	}
	single := m.Flags&(unix.NLM_F_DUMP|unix.NLM_F_ACK) == 0
	interrupted := false
	err := s.Receive(s.Seq, func(m Message) (bool, error) {
		interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
		if m.Kind == unix.NLMSG_ERROR || m.Kind == unix.NLMSG_DONE {
			return true, m.Err()
		}
		return single, take(m)
	})
	if err == nil && interrupted {
		return ErrInterrupted
	}
	return err
}

// Refusal is the kernel's error for one request of a batch.
type Refusal struct {
	// Index is that of the request in the batch.
	Index int
	// At is where in the request's Body the attribute begins that the kernel refused; 0: it did not say.
	At  int
	Err error
}

// Error is the kernel's.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the kernel's error.
func (r *Refusal) Unwrap() error { return r.Err }

// refusedAt is where in a request's body the attribute begins that the kernel's answer m complains about.
func refusedAt(m Message) int {
	const header, tlvs, offset = 4 + unix.SizeofNlMsghdr, 0x200, 2 // NLM_F_ACK_TLVS, NLMSGERR_ATTR_OFFS
	if m.Flags&tlvs == 0 || len(m.Body) < header {
		return 0
	}
	value := Find(m.Body[header:], offset)
	if len(value) < 4 {
		return 0
	}
	return max(0, int(binary.NativeEndian.Uint32(value))-unix.SizeofNlMsghdr)
}

// Batch sends requests at once and returns when that with NLM_F_ACK is answered, or the first error of one of them, a
// *Refusal.
func (s *Socket) Batch(requests []Message) error {
	size := 0
	for _, m := range requests {
		size += unix.SizeofNlMsghdr + Aligned(len(m.Body))
	}
	first, last, b := s.Seq+1, uint32(0), slices.Grow(s.Request(), size)
	for _, m := range requests {
		s.Seq++
		b = m.Append(b, s.Seq)
		if m.Flags&unix.NLM_F_ACK != 0 {
			last = s.Seq
		}
	}
	if err := s.setSendBuffer(len(b) + 4096); err != nil {
		return fmt.Errorf("make room for a transaction of %d bytes: %w", len(b), err)
	}
	if err := s.Send(b); err != nil {
		return err
	}
	return s.Receive(first, func(m Message) (bool, error) {
		if m.Kind != unix.NLMSG_ERROR {
			return false, nil
		}
		if err := m.Err(); err != nil {
			return false, &Refusal{Index: int(m.Seq - first), At: refusedAt(m), Err: err}
		}
		return m.Seq == last, nil
	})
}
