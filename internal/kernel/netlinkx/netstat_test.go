package netlinkx

import (
	"os"
	"strings"
	"testing"
)

func TestTCPCounters(t *testing.T) {
	for text, want := range map[string]uint64{
		"TcpExt: SyncookiesSent TCPAOBad Last\nTcpExt: 7 4 9\nIpExt: TCPAOBad\nIpExt: 100\n": 4,
		"": 0, "TcpExt:\nTcpExt:\n": 0, "TcpExt: TCPAOBad\n": 0, "TcpExt: TCPAOBad\nTcpExt: x\n": 0, "TcpExt: Last TCPAOBad\nTcpExt: 1\n": 0,
	} {
		if got := tcpCounters(strings.NewReader(text))["TCPAOBad"]; got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	// The kernel's own file has these lines.
	text, err := os.ReadFile(netstat)
	for _, name := range []string{"TCPMD5NotFound", "TCPMD5Unexpected", "TCPMD5Failure"} {
		if err != nil || !strings.Contains(string(text), " "+name+" ") {
			t.Errorf("%v: no counter %s in %s", err, name, netstat)
		}
	}
}
