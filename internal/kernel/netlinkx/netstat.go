package netlinkx

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
)

// netstat has the kernel's counters of TCP, for the network namespace of the thread that reads it.
const netstat = "/proc/thread-self/net/netstat"

// WrongPasswords returns how many TCP segments the kernel has dropped for their MD5 signature (RFC 2385): none, a wrong
// one, or one where there is to be none. They are of the whole host: the kernel counts no others. It is 0 of a kernel
// that counts nothing.
func WrongPasswords() (sum uint64) {
	for name, n := range readTCP() {
		if strings.HasPrefix(name, "TCPMD5") {
			sum += n
		}
	}
	return sum
}

// AOSegments are the TCP segments of the whole host that TCP-AO (RFC 5925) has had the kernel judge; 0 of a kernel that
// counts nothing.
type AOSegments struct {
	Good        uint64
	Bad         uint64 // the key with their ID makes another MAC
	KeyNotFound uint64 // there is no key with their ID, or none at all
	Unsigned    uint64 // from a peer that has keys
}

// Refused is how many of them were dropped.
func (s AOSegments) Refused() uint64 { return s.Bad + s.KeyNotFound + s.Unsigned }

// ReadAO returns the counts of now.
func ReadAO() AOSegments {
	n := readTCP()
	return AOSegments{n["TCPAOGood"], n["TCPAOBad"], n["TCPAOKeyNotFound"], n["TCPAORequired"]}
}

func readTCP() map[string]uint64 {
	f, err := os.Open(netstat)
	if err != nil {
		return nil
	}
	defer f.Close()
	return tcpCounters(f)
}

// tcpCounters reads two lines for each protocol: the counters' names, and their values.
func tcpCounters(r io.Reader) map[string]uint64 {
	var names []string
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		counters := make(map[string]uint64, len(names))
		for i, name := range names[:min(len(names), len(fields))] {
			counters[name], _ = strconv.ParseUint(fields[i], 10, 64) // what is no number counts for nothing
		}
		return counters
	}
	return nil
}
