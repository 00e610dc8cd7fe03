package nlmsg

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Events is a socket that gets what the kernel multicasts.
type Events struct{ file *os.File }

// Listen opens, in the network namespace of the calling thread, a socket that gets what is sent to groups and passes the filter, a
// program of classic BPF; nil: all. buffer is how many bytes of it the kernel keeps; 0: its default.
func Listen(protocol int, groups []int, filter []unix.SockFilter, buffer int) (*Events, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, err
	}
	e := &Events{os.NewFile(uintptr(fd), "netlink events")}
	if len(filter) > 0 {
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
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

// Close closes the socket; a Receive that waits returns.
func (e *Events) Close() error { return e.file.Close() }

// Receive waits for a datagram and reads as much of it as b takes. The error is unix.ENOBUFS if the kernel had no room for
// some, and another one if the socket was closed or is broken.
func (e *Events) Receive(b []byte) (n int, err error) {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var received error
	err = raw.Read(func(fd uintptr) bool {
		n, received = receive(int(fd), b)
		return received != unix.EAGAIN
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
			if _, err := receive(int(fd), b[:]); err != nil && err != unix.ENOBUFS {
				return
			}
		}
	})
}

func receive(fd int, b []byte) (n int, err error) {
	for {
		if n, _, err = unix.Recvfrom(fd, b, unix.MSG_DONTWAIT); err != unix.EINTR {
			return n, err
		}
	}
}
