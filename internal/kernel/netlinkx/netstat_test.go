package netlinkx

import (
	"os"
	"strings"
	"testing"
)

func TestWrongPasswords(t *testing.T) {
	for text, want := range map[string]uint64{
		"TcpExt: SyncookiesSent TCPMD5NotFound TCPMD5Unexpected TCPMD5Failure Last\nTcpExt: 7 1 2 4 9\nIpExt: TCPMD5Odd\nIpExt: 100\n": 7,
		"": 0, "TcpExt:\nTcpExt:\n": 0, "TcpExt: TCPMD5Failure\n": 0, "TcpExt: TCPMD5Failure\nTcpExt: x\n": 0,
	} {
		if got := wrongPasswords(strings.NewReader(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	// The kernel's own file has such lines.
	text, err := os.ReadFile(netstat)
	if err != nil || !strings.Contains(string(text), " TCPMD5Failure ") {
		t.Errorf("%v: no counter in %s", err, text)
	}
}
