package bgptest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
)

// AOBird is a BIRD from 2.18 on, which has TCP-AO, in AS 65000, with one session. Debian's releases up to 13 have an
// older one.
type AOBird struct {
	*Host
	config aoConfig
	dir    string
	log    logtest.Buffer
}

// AOKey is a key in BIRD's syntax; Use is empty, preferred; or deprecated;.
type AOKey struct {
	Send, Recv             int
	Secret, Algorithm, Use string
}

type aoConfig struct {
	Self, Peer netip.Addr
	Passive    bool
	Keys       []AOKey
}

var aoBirdConfig = template.Must(template.New("bird.conf").Parse(`
router id {{.Self}};
log stderr all;
protocol device { }
protocol static { ipv4; route 192.0.2.0/24 blackhole; }
protocol bgp node {
  debug { states };
  local {{.Self}} as 65000;
  neighbor {{.Peer}} as 64512;
  {{if .Passive}}passive on;{{end}}
  connect delay time 1;
  authentication ao;
  keys {
    {{range .Keys}}key { send id {{.Send}}; recv id {{.Recv}}; secret "{{.Secret}}"; algorithm {{.Algorithm}}; {{.Use}} };
    {{end}}
  };
  ipv4 { import all; export all; };
}`))

// AOBird starts the BIRD of lab vmtest -bird and lab vm -bird, which announces 192.0.2.0/24 to a peer in AS 64512.
func (h *Host) AOBird(peer netip.Addr, passive bool, keys ...AOKey) *AOBird {
	h.T.Helper()
	b := &AOBird{Host: h, config: aoConfig{Self: h.V4, Peer: peer, Passive: passive}, dir: h.T.TempDir()}
	b.write(keys)
	h.T.Cleanup(func() {
		if h.T.Failed() {
			h.T.Logf("log of BIRD:\n%s", b.log.Tail())
		}
	})
	h.launch(&b.log,
		b.program("bird", "-f", "-c", filepath.Join(b.dir, "bird.conf"), "-s", filepath.Join(b.dir, "ctl"), "-P", filepath.Join(b.dir, "pid"))...)
	return b
}

func (b *AOBird) write(keys []AOKey) {
	b.T.Helper()
	b.config.Keys = keys
	var text strings.Builder
	errtest.Must(b.T, aoBirdConfig.Execute(&text, b.config))
	errtest.Must(b.T, os.WriteFile(filepath.Join(b.dir, "bird.conf"), []byte(text.String()), 0o600))
}

// AOBirdDir returns the directory of BIRD and the libraries that it needs.
func AOBirdDir() (string, error) {
	dir, _ := config.OS()("TORTIE_BIRD")
	if dir == "" {
		return "", errors.New("TORTIE_BIRD is not set: lab vmtest -bird, or lab vm -bird")
	}
	return dir, nil
}

// program returns the arguments that run a program of BIRD by its own loader.
func (b *AOBird) program(name string, args ...string) []string {
	b.T.Helper()
	dir, err := AOBirdDir()
	errtest.Must(b.T, err)
	return unstable(dir, filepath.Join(dir, "usr/sbin", name), args...)
}

// Control runs a command of birdc and returns its output.
func (b *AOBird) Control(command ...string) string {
	b.T.Helper()
	args := b.program("birdc", append([]string{"-s", filepath.Join(b.dir, "ctl")}, command...)...)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		b.T.Fatalf("%v:\n%s", err, out)
	}
	return string(out)
}

// Set changes the keys of a running BIRD.
func (b *AOBird) Set(keys ...AOKey) {
	b.T.Helper()
	b.write(keys)
	if out := b.Control("configure"); !strings.Contains(out, "Reconfigured") {
		b.T.Fatal(out)
	}
}

// OneSession fails the test if the session has ever ended.
func (b *AOBird) OneSession() {
	b.T.Helper()
	if text := b.log.String(); strings.Count(text, "node: State changed") != 2 { // to start, to up
		b.T.Errorf("BIRD's session was not one:\n%s", text)
	}
}

// WaitSigns waits until BIRD signs by the key with this send ID, and requests the key with this receive ID.
func (b *AOBird) WaitSigns(send, receive int) {
	b.T.Helper()
	Eventually(b.T, func() error {
		var words []string
		for line := range strings.Lines(b.Control("show", "protocols", "all", "node")) {
			if text := strings.Join(strings.Fields(line), " "); strings.Contains(text, " key: ") {
				words = append(words, text)
			}
		}
		if got, want := strings.Join(words, ", "), fmt.Sprintf("Current key: %d, RNext key: %d", send, receive); got != want {
			return fmt.Errorf("BIRD: %s, want %s", got, want)
		}
		return nil
	})
}

// KeepAO makes the kernel check all TCP segments for TCP-AO until the test ends. The kernel patches the check into its
// code when the first socket gets a key, and out after the last one; an emulated processor at that place may stop by
// "Oops: int3", which ends the virtual machine.
func KeepAO(t testing.TB) {
	t.Helper()
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // which has no TCP-AO
	l, err := plain.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	errtest.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	raw, err := l.(*net.TCPListener).SyscallConn()
	errtest.Must(t, err)
	keys, err := tcpao.Parse("1 hmac-sha1-96 unused\n")
	errtest.Must(t, err)
	failed, err := tcpao.Expect(raw, map[netip.Addr]tcpao.Keys{netip.MustParseAddr("127.0.0.2"): keys})
	errtest.Must(t, errors.Join(err, failed[netip.MustParseAddr("127.0.0.2")]))
}
