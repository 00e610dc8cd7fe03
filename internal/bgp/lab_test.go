package bgp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

const (
	callTimeout = 5 * time.Second
	// sessionTimeout covers GoBGP's five seconds in Idle twice, its random connect delay and a busy machine.
	sessionTimeout = 40 * time.Second
)

// lan is a bridge in a network namespace of its own; hosts hang off it.
type lan struct {
	t    testing.TB
	name string
}

var lans atomic.Int32

func newLAN(t testing.TB) *lan {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("sessions need root: they run in network namespaces, on port 179")
	}
	needtest.Program(t, "ip")
	l := &lan{t: t, name: fmt.Sprintf("bgptest-%d-%d", os.Getpid(), lans.Add(1))}
	l.namespace(l.name)
	run(t, "ip", "-n", l.name, "link", "add", "br0", "type", "bridge")
	run(t, "ip", "-n", l.name, "link", "set", "br0", "up")
	return l
}

func (l *lan) namespace(name string) {
	l.t.Helper()
	run(l.t, "ip", "netns", "add", name)
	l.t.Cleanup(func() { run(l.t, "ip", "netns", "del", name) })
	run(l.t, "ip", "-n", name, "link", "set", "lo", "up")
}

// host is a network namespace with the addresses 10.0.0.n and fd00::n.
type host struct {
	t      testing.TB
	ns     string
	v4, v6 netip.Addr
}

func (l *lan) host(n int) *host {
	l.t.Helper()
	h := &host{
		t:  l.t,
		ns: fmt.Sprintf("%s-%d", l.name, n),
		v4: netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", n)),
		v6: netip.MustParseAddr(fmt.Sprintf("fd00::%d", n)),
	}
	l.namespace(h.ns)
	port := fmt.Sprintf("port%d", n)
	run(l.t, "ip", "-n", h.ns, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", l.name)
	run(l.t, "ip", "-n", l.name, "link", "set", port, "master", "br0", "up")
	run(l.t, "ip", "-n", h.ns, "addr", "add", h.v4.String()+"/24", "dev", "eth0")
	run(l.t, "ip", "-n", h.ns, "addr", "add", h.v6.String()+"/64", "dev", "eth0", "nodad")
	run(l.t, "ip", "-n", h.ns, "link", "set", "eth0", "up")
	return h
}

// command is a command inside of the host. The process that runs is its own: ip execs it.
func (h *host) command(args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", h.ns}, args...)...)
}

// speaker is a process with a bgp.Server on a host.
type speaker struct {
	*host
	cmd     *exec.Cmd
	in      io.WriteCloser
	calls   *json.Encoder
	replies *json.Decoder
	log     *logtest.Buffer
	over    bool
}

// speak starts a process without calling Start in it. wrap are commands to run it under.
func (h *host) speak(wrap ...string) *speaker {
	h.t.Helper()
	self, err := os.Executable()
	errtest.Must(h.t, err)
	s := &speaker{host: h, cmd: h.command(append(wrap, self, childArg)...), log: &logtest.Buffer{}}
	s.cmd.Stderr = s.log
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	errtest.Must(h.t, err)
	errtest.Must(h.t, s.cmd.Start())
	s.calls, s.replies = json.NewEncoder(s.in), json.NewDecoder(out)
	h.t.Cleanup(func() {
		s.kill()
		if h.t.Failed() {
			h.t.Logf("log of the speaker on %s:\n%s", h.v4, s.log)
		}
	})
	return s
}

// kill ends the process as SIGKILL does.
func (s *speaker) kill() {
	if !s.over {
		s.over = true
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// exit lets the process end by itself.
func (s *speaker) exit() {
	s.t.Helper()
	s.over = true
	if err := errors.Join(s.in.Close(), s.cmd.Wait()); err != nil {
		s.t.Fatalf("speaker on %s: %v", s.v4, err)
	}
}

// try makes a call, do one that must not fail.
func (s *speaker) try(c call) reply {
	s.t.Helper()
	if c.Timeout == 0 {
		c.Timeout = callTimeout
	}
	var r reply
	if err := errors.Join(s.calls.Encode(c), s.replies.Decode(&r)); err != nil {
		s.t.Fatalf("%s on %s: %v", c.Method, s.v4, err)
	}
	return r
}

func (s *speaker) do(c call) reply {
	s.t.Helper()
	r := s.try(c)
	if r.Err != "" {
		s.t.Fatalf("%s on %s: %s", c.Method, s.v4, r.Err)
	}
	return r
}

func (s *speaker) start(asn uint32, restarting bool) {
	s.t.Helper()
	s.do(call{Method: "Start", Local: bgp.Local{
		ASN: asn, RouterID: s.v4, Listen: []netip.Addr{s.v4, s.v6}, Restarting: restarting,
	}})
}

func (s *speaker) originate(prefixes ...string) {
	s.t.Helper()
	var paths []bgp.Path
	for _, p := range prefixes {
		paths = append(paths, bgp.Path{Prefix: netip.MustParsePrefix(p)})
	}
	s.do(call{Method: "SetOriginated", Paths: paths})
}

func (s *speaker) setPeers(peers ...bgp.Peer) {
	s.t.Helper()
	s.do(call{Method: "SetPeers", Peers: peers})
}

// mesh returns s's IPv4 sessions to others, all in AS 64512.
func (s *speaker) mesh(others ...*host) []bgp.Peer {
	var members []bgp.Member
	for _, o := range others {
		members = append(members, bgp.Member{Addr: o.v4, ASN: 64512})
	}
	return bgp.Mesh(bgp.Member{Addr: s.v4, ASN: 64512}, members)
}

func (s *speaker) snapshot() []bgp.Path {
	s.t.Helper()
	return s.do(call{Method: "Snapshot"}).Paths
}

// learned returns the prefixes of the snapshot.
func (s *speaker) learned() string {
	s.t.Helper()
	var prefixes []string
	for _, p := range s.snapshot() {
		prefixes = append(prefixes, p.Prefix.String())
	}
	return strings.Join(prefixes, " ")
}

func (s *speaker) peer(addr netip.Addr) bgp.PeerStatus {
	s.t.Helper()
	for _, p := range s.do(call{Method: "Peers"}).Peers {
		if p.Addr == addr {
			return p
		}
	}
	s.t.Fatalf("speaker on %s has no peer %s", s.v4, addr)
	return bgp.PeerStatus{}
}

func (s *speaker) waitEstablished(addrs ...netip.Addr) {
	s.t.Helper()
	for _, addr := range addrs {
		eventually(s.t, func() error {
			if p := s.peer(addr); p.State != bgp.Established {
				return fmt.Errorf("session of %s to %s is %s, %s", s.v4, addr, p.State, p.LastError)
			}
			return nil
		})
	}
}

func (s *speaker) waitLearned(want string) {
	s.t.Helper()
	eventually(s.t, func() error {
		if got := s.learned(); got != want {
			return fmt.Errorf("%s has learned %q, want %q", s.v4, got, want)
		}
		return nil
	})
}

// eventually polls until check has no objection.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	waittest.For(t, sessionTimeout, check)
}

func run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
