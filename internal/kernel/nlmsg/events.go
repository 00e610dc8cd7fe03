package nlmsg

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Events is a socket that receives the kernel's multicasts.
type Events struct {
	file *os.File
	mu   sync.Mutex // held while a datagram is handled by Wait or Drain
}

// Listen opens, in the network namespace of the calling thread, a socket that receives messages to groups that pass the
// filter, a program of classic BPF; nil: all. buffer is the size of its receive buffer in bytes; 0: the kernel's
// default.
func Listen(protocol int, groups []int, filter []unix.SockFilter, buffer int) (*Events, error) {
	return listen(unix.SOCK_NONBLOCK, protocol, groups, filter, buffer)
}

// ListenUnwatched is Listen for Drain alone: messages wake no goroutine, as the runtime's poller does not know the
// socket.
func ListenUnwatched(protocol int, groups []int, buffer int) (*Events, error) {
	return listen(0, protocol, groups, nil, buffer)
}

func listen(flags, protocol int, groups []int, filter []unix.SockFilter, buffer int) (*Events, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, protocol)
	if err != nil {
		return nil, err
	}
	e := &Events{file: os.NewFile(uintptr(fd), "netlink events")}
	err = unix.SetNonblock(fd, true) // after NewFile, which adds non-blocking files to the poller
	if len(filter) > 0 {
		err = errors.Join(err, attach(fd, filter))
	}
	if buffer > 0 && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer))
	}
	err = errors.Join(err, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	for _, group := range groups {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func attach(fd int, filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
}

// Filter replaces the filter.
func (e *Events) Filter(filter []unix.SockFilter) error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	var attached error
	return errors.Join(raw.Control(func(fd uintptr) { attached = attach(int(fd), filter) }), attached)
}

// Ask sends a request with NLM_F_ACK and returns the kernel's answer to it. Messages before the answer are lost. The
// error is unix.ENOBUFS if the kernel had no room for some: the answer may be among these.
func (e *Events) Ask(m Message) error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	const seq = 1
	request := Message{Kind: m.Kind, Flags: m.Flags | unix.NLM_F_ACK, Body: m.Body}.Append(nil, seq)
	var sent error
	err = raw.Control(func(fd uintptr) {
		sent = unix.Sendto(int(fd), request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
	if err := errors.Join(err, sent); err != nil {
		return err
	}
	for b := make([]byte, 1<<16); ; {
		n, err := e.Receive(b)
		if err != nil {
			return err
		}
		if m, _, err := Next(b[:n]); err == nil && m.Kind == unix.NLMSG_ERROR && m.Seq == seq {
			return m.Err()
		}
	}
}

// Wait waits for a datagram, reads as much of it as fits into b, and calls take with it: err is unix.ENOBUFS if the
// kernel had no room for some. No Drain runs during take. Wait's error means that the socket was closed or is broken.
func (e *Events) Wait(b []byte, take func(datagram []byte, err error)) error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	var broken error
	err = raw.Read(func(fd uintptr) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		more, err := handle(int(fd), b, take)
		broken = err
		return more || err != nil
	})
	return errors.Join(err, broken)
}

// Drain is Wait for all datagrams that have come already, and does not wait. The events of a transaction come before
// its answer.
func (e *Events) Drain(b []byte, take func(datagram []byte, err error)) error {
	return e.DrainWhile(b, take, func() bool { return true })
}

// DrainWhile is Drain that stops when goOn returns false after a datagram.
func (e *Events) DrainWhile(b []byte, take func(datagram []byte, err error), goOn func() bool) error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	var broken error
	err = raw.Control(func(fd uintptr) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for more := true; more && broken == nil; {
			more, broken = handle(int(fd), b, take)
			more = more && goOn()
		}
	})
	return errors.Join(err, broken)
}

// handle reads a datagram, if there is one, and calls take with it.
func handle(fd int, b []byte, take func(datagram []byte, err error)) (more bool, err error) {
	n, err := receive(fd, b)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false, nil
	case err == nil:
		take(b[:n], nil)
	case errors.Is(err, unix.ENOBUFS):
		take(nil, err)
	default:
		return false, err
	}
	return true, nil
}

// Close closes the socket; a Receive that waits returns.
func (e *Events) Close() error { return e.file.Close() }

// Receive waits for a datagram and reads as much of it as fits into b. The error is unix.ENOBUFS if the kernel had no
// room for some, and another one if the socket was closed or is broken.
func (e *Events) Receive(b []byte) (n int, err error) {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var received error
	err = raw.Read(func(fd uintptr) bool {
		n, received = receive(int(fd), b)
		return !errors.Is(received, unix.EAGAIN)
	})
	return n, errors.Join(err, received)
}

// Discard reads up to most datagrams that have come already.
func (e *Events) Discard(most int) {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		for range most {
			if _, err := receive(int(fd), b[:]); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
		}
	})
}

// receive reads a datagram without waiting. Recvfrom would allocate an address for each.
func receive(fd int, b []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, b); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
