package bfd

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batchLen is how many packets one system call reads.
	batchLen = 64
	// readLen is the most bytes of a packet: its length field has one byte.
	readLen = 256
)

// The system calls here do not wait. They bypass Go's scheduler, which would else wake its monitor thread in each tick.

// mmsghdr is the struct of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	len uint32
}

// batch is the buffer of recvmmsg. Its headers point to its other fields.
type batch struct {
	headers [batchLen]mmsghdr
	vectors [batchLen]unix.Iovec
	names   [batchLen]unix.RawSockaddrInet6 // also holds the shorter one of IPv4
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

// read reads at most batchLen packets and returns their number. It ignores errors: apart from EAGAIN they pass, or the
// next call reads nothing, too.
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

// disconnect undoes connect(2), with the source address and link that it chose.
func disconnect(fd int) error {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); errno != 0 {
		return errno
	}
	return nil
}
