package bfd

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batchLen is how many packets one system call reads.
	batchLen = 64
	// readLen is what of a packet is read: it says its length in a byte.
	readLen = 256
)

// The system calls here do not wait, and are made without telling Go's scheduler, which would else wake its monitor, a
// thread, in each tick.

// mmsghdr is the struct of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	len uint32
}

// batch is what recvmmsg reads into. Its headers point to its other fields.
type batch struct {
	headers [batchLen]mmsghdr
	vectors [batchLen]unix.Iovec
	names   [batchLen]unix.RawSockaddrInet6 // longer than one of IPv4
	data    [batchLen][readLen]byte
}

func newBatch() *batch {
	b := &batch{}
	for i := range b.headers {
		b.vectors[i].Base = &b.data[i][0]
		b.vectors[i].SetLen(readLen)
		h := &b.headers[i]
		h.Name, h.Iov = (*byte)(unsafe.Pointer(&b.names[i])), &b.vectors[i]
		h.SetIovlen(1)
	}
	return b
}

// read reads the packets that have come, batchLen at most, and returns how many they are. An error is EAGAIN; what else
// there may be passes, or there is nothing to read again.
func (b *batch) read(fd int) int {
	for i := range b.headers {
		b.headers[i].Namelen = unix.SizeofSockaddrInet6
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[0])), batchLen, 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// packet returns a packet that was read, and its sender; link is the index of the link if the sender is link-local.
func (b *batch) packet(i int) (data []byte, from netip.Addr, link uint32) {
	data, name := b.data[i][:b.headers[i].len], &b.names[i]
	if name.Family == unix.AF_INET {
		return data, netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr), 0
	}
	return data, netip.AddrFrom16(name.Addr), name.Scope_id
}

// write sends a packet by a connected socket.
func write(fd int, b []byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// disconnect undoes connect(2), and what it had chosen: source address and link.
func disconnect(fd int) error {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); errno != 0 {
		return errno
	}
	return nil
}
