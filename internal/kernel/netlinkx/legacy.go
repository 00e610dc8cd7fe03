package netlinkx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/netfilter/x_tables.h and linux/netfilter_ipv4/ip_tables.h; IPv6 has the same numbers.
const (
	tableInfo     = 64 // IPT_SO_GET_INFO
	tableEntries  = 65 // IPT_SO_GET_ENTRIES
	tableNameSize = 32
	infoSize      = tableNameSize + 4*13
	targetName    = 2  // offset of a target's name
	targetData    = 32 // offset of its data
	chainNameSize = 30
)

// legacyFamily has the differences between the families.
type legacyFamily struct {
	names  string // file that lists the tables in use
	domain int
	level  int
	offset int // offset of an entry's target_offset
}

var legacyFamilies = []legacyFamily{
	{"/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, 88},
	{"/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 140},
}

// LegacyChain names a chain of iptables-legacy.
type LegacyChain struct{ Table, Name string }

// LegacyChains lists the chains that iptables-legacy has made in the tables in use, of both families. It makes no table
// and loads no module.
func (c *Conn) LegacyChains() (chains []LegacyChain, err error) {
	err = c.ns.Do(func() error {
		for _, f := range legacyFamilies {
			text, err := os.ReadFile(f.names)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			for _, table := range strings.Fields(string(text)) {
				names, err := f.chains(table)
				if err != nil {
					return fmt.Errorf("read table %s of iptables-legacy: %w", table, err)
				}
				for _, name := range names {
					chains = append(chains, LegacyChain{Table: table, Name: name})
				}
			}
		}
		return nil
	})
	return chains, err
}

func (f legacyFamily) chains(table string) ([]string, error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	info := make([]byte, infoSize)
	copy(info[:tableNameSize-1], table)
	if err := getsockopt(fd, f.level, tableInfo, info); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(info[infoSize-4:])
	const header = tableNameSize + 8 // the size, and padding
	entries := make([]byte, header+int(size))
	copy(entries[:tableNameSize-1], table)
	binary.NativeEndian.PutUint32(entries[tableNameSize:], size)
	if err := getsockopt(fd, f.level, tableEntries, entries); err != nil {
		return nil, err // EAGAIN: the table has changed since
	}
	return f.parse(entries[header:]), nil
}

// parse returns the names of the chains: each begins with an entry with target ERROR and the chain's name. The last has
// the name ERROR.
func (f legacyFamily) parse(entries []byte) (names []string) {
	for len(entries) >= f.offset+4 {
		target, next := int(binary.NativeEndian.Uint16(entries[f.offset:])), int(binary.NativeEndian.Uint16(entries[f.offset+2:]))
		if next == 0 || next > len(entries) || target+targetData > next {
			return names
		}
		t := entries[target:next]
		name, _, _ := strings.Cut(string(t[targetName:targetData-1]), "\x00")
		if name == "ERROR" && len(t) >= targetData+chainNameSize {
			chain, _, _ := strings.Cut(string(t[targetData:targetData+chainNameSize]), "\x00")
			if chain != "ERROR" {
				names = append(names, chain)
			}
		}
		entries = entries[next:]
	}
	return names
}

// getsockopt fills b, which also holds the request.
func getsockopt(fd, level, option int, b []byte) error {
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(unsafe.Pointer(&b[0])),
		uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
