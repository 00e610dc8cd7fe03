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

// WrongPasswords returns how many TCP segments the kernel has dropped for their MD5 signature (RFC 2385): none, a wrong one, or one
// where there is to be none. They are of the whole host: the kernel counts no others. It is 0 of a kernel that counts nothing.
func WrongPasswords() uint64 {
	f, err := os.Open(netstat)
	if err != nil {
		return 0
	}
	defer f.Close()
	return wrongPasswords(f)
}

// wrongPasswords reads two lines for each protocol: the counters' names, and their values.
func wrongPasswords(r io.Reader) (sum uint64) {
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
		for i, name := range names[:min(len(names), len(fields))] {
			if strings.HasPrefix(name, "TCPMD5") {
				n, _ := strconv.ParseUint(fields[i], 10, 64) // what is no number counts for nothing
				sum += n
			}
		}
		return sum
	}
	return sum
}
