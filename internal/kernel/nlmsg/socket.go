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

// ErrInterrupted means that the kernel's table changed while it was listed, so that the list may be wrong.
var ErrInterrupted = errors.New("the table changed while the kernel listed it")

// Socket is a netlink socket. It is for one goroutine at a time.
type Socket struct {
	// Port identifies the socket in events.
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

// answerSize exceeds the 32 KiB that the kernel puts at most into one datagram of a dump.
const answerSize = 64 << 10

// answers are buffers of closed sockets: nft opens a socket for each Sync.
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
		// Without it an error message repeats the request.
		unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		// With it an error message has the offset of the attribute that failed.
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
	// With it the kernel applies the filter of a dump. Linux before 4.20 has no such option, and dumps everything.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return nil
}

// Close closes the socket.
func (s *Socket) Close() {
	_ = unix.Close(s.fd)
	answers.Put(s.answer)
}

// setSendBuffer makes room for size bytes of messages sent at once.
func (s *Socket) setSendBuffer(size int) error {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
}

// Request returns the buffer for the next messages.
func (s *Socket) Request() []byte { return s.request[:0] }

// Send sends messages that were appended to Request.
func (s *Socket) Send(messages []byte) error {
	s.request = messages
	if err := unix.Sendto(s.fd, messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		s.Broken = true
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// Receive calls take with the messages that answer requests from number first on, until take returns done or an error.
// The next datagram overwrites the messages.
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
		if m.Seq-first > s.Seq-first { // the answer to an earlier request
			continue
		}
		done, err := take(m)
		if err != nil {
			s.Broken = true // the rest of the answer is still under way
		}
		if err != nil || done {
			return done, err
		}
	}
	return false, nil
}

// Execute sends a request and calls take with the messages that answer it: all of a dump, all up to the acknowledgement
// for a request with NLM_F_ACK, else one. The error is ErrInterrupted if a dump was complete, but of different states
// of the table.
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
	// Index is the request's index in the batch.
	Index int
	// At is the offset in the request's Body of the attribute that the kernel refused; 0: not known.
	At  int
	Err error
}

// Error returns the text of the kernel's error.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the kernel's error.
func (r *Refusal) Unwrap() error { return r.Err }

// refusedAt returns the offset in a request's body of the attribute that the kernel's answer m names; 0 if none.
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

// Batch sends requests at once, and returns nil after the answer to the one with NLM_F_ACK. It returns the first error
// of a request as a *Refusal.
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
