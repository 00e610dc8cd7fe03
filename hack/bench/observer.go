package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/thread"
)

// observer observes a receiver of routes from outside: the last UPDATE on its link, and route changes in its kernel.
type observer struct {
	events, packets *os.File

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change
	added     int
	deleted   int
	last      time.Time // of added and deleted
	update    time.Time
	broken    error
	protocols [256]bool
}

// newObserver observes routes of a protocol, and packets on a link, in a thread's network namespace.
func newObserver(t *thread.Thread, link string, protocol uint8) (*observer, error) {
	o := &observer{changed: make(chan struct{})}
	o.protocols[protocol] = true
	err := t.Do(func() (err error) {
		if o.events, err = listenRoutes(); err == nil {
			o.packets, err = listenPackets(link)
		}
		return err
	})
	if err != nil {
		o.close()
		return nil, fmt.Errorf("watch routes and packets: %w", err)
	}
	go o.read(o.events, o.route)
	go o.read(o.packets, o.packet)
	return o, nil
}

// receiveBuffer holds all events of a run, however late they are read.
const receiveBuffer = 256 << 20

func listenRoutes() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "route events"), errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_IPV4_ROUTE - 1)}))
}

const ethIPv4 = 0x0008 // ETH_P_IP in network order

func listenPackets(link string) (*os.File, error) {
	index, err := linkIndex(link)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, ethIPv4)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "packets"), errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ethIPv4, Ifindex: index}))
}

// linkIndex reads the index in the calling thread's namespace; net.InterfaceByName may use another thread.
func linkIndex(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req); err != nil {
		return 0, fmt.Errorf("find link %s: %w", name, err)
	}
	return int(req.Uint32()), nil
}

func (o *observer) close() {
	for _, f := range []*os.File{o.events, o.packets} {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (o *observer) read(f *os.File, take func([]byte)) {
	b := make([]byte, 64<<10)
	for {
		n, err := f.Read(b)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		o.mu.Lock()
		if err != nil {
			o.broken = err
		} else {
			take(b[:n])
		}
		close(o.changed)
		o.changed = make(chan struct{})
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// route handles one notification: nlmsghdr, then rtmsg with its protocol.
func (o *observer) route(b []byte) {
	if len(b) < unix.SizeofNlMsghdr+unix.SizeofRtMsg || !o.protocols[b[unix.SizeofNlMsghdr+5]] {
		return
	}
	switch binary.NativeEndian.Uint16(b[4:]) {
	case unix.RTM_NEWROUTE:
		o.added++
	case unix.RTM_DELROUTE:
		o.deleted++
	default:
		return
	}
	o.last = time.Now()
}

// packet handles one received packet. A KEEPALIVE is 19 bytes, anything longer here is an UPDATE.
func (o *observer) packet(b []byte) {
	if len(b) < 20 || b[9] != unix.IPPROTO_TCP {
		return
	}
	header := int(b[0]&15) * 4
	if len(b) < header+20 {
		return
	}
	data := int(binary.BigEndian.Uint16(b[2:])) - header - int(b[header+12]>>4)*4
	from, to := binary.BigEndian.Uint16(b[header:]), binary.BigEndian.Uint16(b[header+2:])
	if data > 19 && (from == bgpPort || to == bgpPort) {
		o.update = time.Now()
	}
}

const bgpPort = 179

// begin resets the counts.
func (o *observer) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.added, o.deleted, o.last, o.update = 0, 0, time.Time{}, time.Time{}
}

// await waits for this number of route changes, and returns the time of the last one.
func (o *observer) await(count func(*observer) int, want int, timeout time.Duration) (last, update time.Time, err error) {
	deadline := time.After(timeout)
	for {
		o.mu.Lock()
		have, last, update, err, changed := count(o), o.last, o.update, o.broken, o.changed
		o.mu.Unlock()
		if err != nil {
			return last, update, fmt.Errorf("watch routes: %w", err)
		}
		if have >= want {
			return last, update, nil
		}
		select {
		case <-changed:
		case <-deadline:
			return last, update, fmt.Errorf("%d of %d routes after %v", have, want, timeout)
		}
	}
}

func added(o *observer) int   { return o.added }
func deleted(o *observer) int { return o.deleted }
