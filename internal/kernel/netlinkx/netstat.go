package netlinkx

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
)

// netstat holds the kernel's TCP counters, for the network namespace of the reading thread.
const netstat = "/proc/thread-self/net/netstat"

// WrongPasswords returns the number of TCP segments that the kernel has dropped for their MD5 signature (RFC 2385): a
// missing, wrong or unexpected one. It covers the whole host: the kernel has no narrower counters. It is 0 if the
// kernel has none.
func WrongPasswords() (sum uint64) {
	for name, n := range readTCP() {
		if strings.HasPrefix(name, "TCPMD5") {
			sum += n
		}
	}
	return sum
}

// AOSegments are the kernel's counters of TCP segments that it checked by TCP-AO (RFC 5925), for the whole host; 0 if
// the kernel has none.
type AOSegments struct {
	Good        uint64
	Bad         uint64 // the key with their ID makes another MAC
	KeyNotFound uint64 // there is no key with their ID, or none at all
	Unsigned    uint64 // from a peer that has keys
}

// Refused returns the number of dropped segments.
func (s AOSegments) Refused() uint64 { return s.Bad + s.KeyNotFound + s.Unsigned }

// ReadAO reads the counters.
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
			counters[name], _ = strconv.ParseUint(fields[i], 10, 64) // 0 if it is no number
		}
		return counters
	}
	return nil
}
