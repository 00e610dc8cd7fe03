package bgptest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
	"github.com/tortie-net/tortie/internal/testkit/usagetest"
)

// childArg as the only argument makes a test binary a speaker that is controlled over its standard input. GoBGP
// supports one instance per process, so each speaker of a test is a process.
const childArg = "bgptest-speaker"

// Main runs the tests or, in a speaker process of another test process, the speaker until its end. It returns the exit
// code for TestMain. The test's main package must be built with //go:debug multipathtcp=0.
func Main(tests func() int) int {
	was, err := ChildWith(slog.NewTextHandler(os.Stderr, nil), nil)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	case was:
		return 0
	}
	return tests()
}

// ChildWith runs the speaker alone, with a log handler of the test's, and methods that bgp.Speaker does not have. It
// reports whether this is a speaker process.
func ChildWith(log slog.Handler, methods map[string]func(*bgp.Server) string) (was bool, err error) {
	if len(os.Args) != 2 || os.Args[1] != childArg {
		return false, nil
	}
	return true, serve(slog.New(log), methods, os.Stdin, os.Stdout)
}

// Call is a method of bgp.Speaker with its arguments, Reply its results.
type Call struct {
	Method  string
	Timeout time.Duration // 0: callTimeout
	Local   bgp.Local
	Peers   []bgp.Peer
	Paths   []bgp.Path
	Within  []netip.Prefix // nil: all
	Policy  bgp.Policy     // without per-peer rules
	Filters map[netip.Addr]api.BGPFilterSpec
	Mode    bgp.Mode
	From    []netip.Addr
	Text    []byte // of bgp.Ends
}

// policy returns the policy of a call, with its filters compiled to rules.
func (c Call) policy() (bgp.Policy, error) {
	p := c.Policy
	p.Import, p.Export = map[netip.Addr]*policy.Rules{}, map[netip.Addr]*policy.Rules{}
	var errs []error
	for addr, spec := range c.Filters {
		for _, family := range wire.FamiliesOf(addr).All() {
			in, inErrs := policy.Compile("test", &spec, policy.Import, family)
			out, outErrs := policy.Compile("test", &spec, policy.Export, family)
			p.Import[addr], p.Export[addr] = policy.Join(p.Import[addr], in), policy.Join(p.Export[addr], out)
			errs = append(errs, append(inErrs, outErrs...)...)
		}
	}
	return p, errors.Join(errs...)
}

// Reply has the results of a Call.
type Reply struct {
	Err        string
	NotStarted bool // Err is bgp.ErrNotStarted
	Stopped    bool // Err is bgp.ErrStopped
	Paths      []bgp.Path
	Peers      []bgp.PeerStatus
	Traffic    map[netip.Addr]bgp.Traffic
	Totals     bgp.Totals
	Told       []netip.Prefix
	Ends       []bgp.End // of the first of From
	Text       []byte
}

func serve(log *slog.Logger, methods map[string]func(*bgp.Server) string, in io.Reader, out io.Writer) error {
	speaker, err := bgp.New(log, nil)
	if err != nil {
		return err
	}
	calls, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var c Call
		if err := calls.Decode(&c); errors.Is(err, io.EOF) {
			return nil // exit without a Cease
		} else if err != nil {
			return err
		}
		var r Reply
		if more := methods[c.Method]; more != nil {
			r.Text = []byte(more(speaker))
		} else {
			r = answer(speaker, c)
		}
		if err := replies.Encode(r); err != nil {
			return err
		}
	}
}

func answer(speaker bgp.Speaker, c Call) Reply {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	var r Reply
	var err error
	switch c.Method {
	case "Start":
		err = speaker.Start(ctx, c.Local)
	case "SetPeers":
		err = speaker.SetPeers(ctx, c.Peers)
	case "SetPolicy":
		var p bgp.Policy
		if p, err = c.policy(); err == nil {
			err = speaker.SetPolicy(ctx, p)
		}
	case "SetLocal":
		err = speaker.SetLocal(ctx, c.Local)
	case "SetOriginated":
		err = speaker.SetOriginated(ctx, c.Paths)
	case "Snapshot":
		var judge bgp.Judge
		if c.Within != nil {
			judge = within(c.Within)
		}
		r.Paths, _, err = speaker.Snapshot(ctx, judge)
	case "Peers":
		r.Peers, err = speaker.Peers(ctx)
	case "Traffic":
		r.Traffic, r.Totals, r.Told = speaker.Traffic(), speaker.Totals(), speaker.Told()
	case "Ends":
		if len(c.From) > 0 {
			r.Ends = speaker.Ends().Of(c.From[0])
		}
		r.Text, err = speaker.Ends().Text()
	case "Recall":
		err = speaker.Ends().Recall(c.Text)
	case "Dirty":
		select {
		case <-speaker.Dirty():
		case <-ctx.Done():
			err = errors.New("not dirty")
		}
	case "Healthy":
		err = speaker.Healthy(ctx)
	case "Stop":
		err = speaker.Stop(ctx, c.Mode)
	default:
		err = fmt.Errorf("no method %q", c.Method)
	}
	if err != nil {
		r.Err = err.Error()
		r.NotStarted, r.Stopped = errors.Is(err, bgp.ErrNotStarted), errors.Is(err, bgp.ErrStopped)
	}
	return r
}

// within has an objection to paths outside of some prefixes.
type within []netip.Prefix

// Objection implements bgp.Judge.
func (w within) Objection(p bgp.Path) (o bgp.Objection) {
	if !slices.ContainsFunc(w, func(in netip.Prefix) bool { return in.Overlaps(p.Prefix) && in.Bits() <= p.Prefix.Bits() }) {
		o = bgp.Objection{Path: p, Why: "outside"}
	}
	return o
}

// Speaker is a process with a bgp.Server on a host.
type Speaker struct {
	*Host
	cmd     *exec.Cmd
	in      io.WriteCloser
	calls   *json.Encoder
	replies *json.Decoder
	log     *logtest.Buffer
	over    bool
}

// callTimeout is far more than a call takes on a busy machine.
const callTimeout = 20 * time.Second

// Speaker starts a speaker process without a call of its Start. under is a command to run it by, perhaps none.
func (h *Host) Speaker(under ...string) *Speaker {
	h.T.Helper()
	self, err := os.Executable()
	errtest.Must(h.T, err)
	args := append(under, self, childArg)
	s := &Speaker{Host: h, cmd: exec.Command(args[0], args[1:]...), log: &logtest.Buffer{}}
	s.cmd.Stderr = s.log
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		h.T.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	errtest.Must(h.T, err)
	h.Within(h.T, s.cmd.Start)
	s.calls, s.replies = json.NewEncoder(s.in), json.NewDecoder(out)
	h.T.Cleanup(func() {
		s.End(syscall.SIGKILL)
		if h.T.Failed() {
			h.T.Logf("log of the speaker on %s:\n%s", h.V4, s.log.Tail())
		}
	})
	return s
}

// End ends the process by a signal. SIGTERM and SIGKILL look the same to peers: an agent sends no NOTIFICATION when it
// exits.
func (s *Speaker) End(signal syscall.Signal) {
	if !s.over {
		s.over = true
		_ = s.cmd.Process.Signal(signal)
		_ = s.cmd.Wait()
	}
}

// Exit lets the process end by itself.
func (s *Speaker) Exit() {
	s.T.Helper()
	s.over = true
	if err := errors.Join(s.in.Close(), s.cmd.Wait()); err != nil {
		s.T.Fatalf("speaker on %s: %v", s.V4, err)
	}
}

// Try makes a call that may fail.
func (s *Speaker) Try(c Call) Reply {
	s.T.Helper()
	if c.Timeout == 0 {
		c.Timeout = callTimeout
	}
	var r Reply
	if err := errors.Join(s.calls.Encode(c), s.replies.Decode(&r)); err != nil {
		s.T.Fatalf("%s on %s: %v: the process has ended:\n%s", c.Method, s.V4, err, s.log.Tail())
	}
	return r
}

// Call makes a call that must not fail.
func (s *Speaker) Call(c Call) Reply {
	s.T.Helper()
	r := s.Try(c)
	if r.Err != "" {
		s.T.Fatalf("%s on %s: %s", c.Method, s.V4, r.Err)
	}
	return r
}

// Start starts the speaker on the host's two addresses.
func (s *Speaker) Start(asn uint32, restarting bool) {
	s.T.Helper()
	s.StartLocal(bgp.Local{ASN: asn, Restarting: restarting})
}

// StartLocal is Start with all local settings; the addresses are the host's.
func (s *Speaker) StartLocal(local bgp.Local) {
	s.T.Helper()
	local.RouterID, local.Listen = s.V4, s.Addrs()
	s.Call(Call{Method: "Start", Local: local})
}

// SetLocal changes the local settings of a started speaker. The router ID and, if none are given, the host's addresses
// are filled in.
func (s *Speaker) SetLocal(local bgp.Local) {
	s.T.Helper()
	if err := s.TrySetLocal(local); err != nil {
		s.T.Fatalf("SetLocal on %s: %v", s.V4, err)
	}
}

// TrySetLocal is SetLocal for settings that may be refused.
func (s *Speaker) TrySetLocal(local bgp.Local) error {
	s.T.Helper()
	local.RouterID = s.V4
	if local.Listen == nil {
		local.Listen = s.Addrs()
	}
	if r := s.Try(Call{Method: "SetLocal", Local: local}); r.Err != "" {
		return errors.New(r.Err)
	}
	return nil
}

// SetPolicy sets the policy of all sessions, and filters for some peers.
func (s *Speaker) SetPolicy(p bgp.Policy, filters map[netip.Addr]api.BGPFilterSpec) {
	s.T.Helper()
	s.Call(Call{Method: "SetPolicy", Policy: p, Filters: filters})
}

// Originate sets the prefixes that the speaker originates.
func (s *Speaker) Originate(prefixes ...string) {
	s.T.Helper()
	var paths []bgp.Path
	for _, p := range prefixes {
		paths = append(paths, bgp.Path{Prefix: netip.MustParsePrefix(p)})
	}
	s.Call(Call{Method: "SetOriginated", Paths: paths})
}

// SetPeers sets the speaker's peers.
func (s *Speaker) SetPeers(peers ...bgp.Peer) {
	s.T.Helper()
	s.Call(Call{Method: "SetPeers", Peers: peers})
}

// Healthy fails the test if the speaker's event loop is stuck.
func (s *Speaker) Healthy() {
	s.T.Helper()
	s.Call(Call{Method: "Healthy"})
}

// Snapshot returns the learned paths.
func (s *Speaker) Snapshot() []bgp.Path {
	s.T.Helper()
	return s.Call(Call{Method: "Snapshot"}).Paths
}

// Learned returns the prefixes of the learned paths, separated by spaces.
func (s *Speaker) Learned() string {
	s.T.Helper()
	var prefixes []string
	for _, p := range s.Snapshot() {
		prefixes = append(prefixes, p.Prefix.String())
	}
	return strings.Join(prefixes, " ")
}

// LearnedFrom returns the paths learned from one peer.
func (s *Speaker) LearnedFrom(peer netip.Addr) []bgp.Path {
	s.T.Helper()
	var paths []bgp.Path
	for _, p := range s.Snapshot() {
		if p.From == peer {
			paths = append(paths, p)
		}
	}
	return paths
}

// Peer returns the state of the session with a peer.
func (s *Speaker) Peer(addr netip.Addr) bgp.PeerStatus {
	s.T.Helper()
	for _, p := range s.Call(Call{Method: "Peers"}).Peers {
		if p.Addr == addr {
			return p
		}
	}
	s.T.Fatalf("speaker on %s has no peer %s", s.V4, addr)
	return bgp.PeerStatus{}
}

// WaitEstablished waits until the sessions with peers are established.
func (s *Speaker) WaitEstablished(peers ...netip.Addr) {
	s.T.Helper()
	for _, addr := range peers {
		Eventually(s.T, func() error {
			if p := s.Peer(addr); p.State != bgp.Established {
				return fmt.Errorf("session of %s to %s is %s: %s", s.V4, addr, p.State, p.LastError)
			}
			return nil
		})
	}
}

// WaitLearned waits until the learned prefixes are want, which are separated by spaces.
func (s *Speaker) WaitLearned(want string) {
	s.T.Helper()
	Eventually(s.T, func() error {
		if got := s.Learned(); got != want {
			return fmt.Errorf("%s has learned %q, want %q", s.V4, got, want)
		}
		return nil
	})
}

// WaitError waits until the last error of a session contains want, and returns the session.
func (s *Speaker) WaitError(peer netip.Addr, want string) (p bgp.PeerStatus) {
	s.T.Helper()
	Eventually(s.T, func() error {
		if p = s.Peer(peer); !strings.Contains(p.LastError, want) {
			return fmt.Errorf("%s says of %s: %q, want %q", s.V4, peer, p.LastError, want)
		}
		return nil
	})
	return p
}

// WaitErrors waits until each session is down and has had a last error that contains all of its texts. Errors change:
// after "administrative shutdown" a peer refuses connections.
func (s *Speaker) WaitErrors(want map[netip.Addr][]string) {
	s.T.Helper()
	seen := map[netip.Addr][]string{}
	Eventually(s.T, func() error {
		for _, p := range s.Call(Call{Method: "Peers"}).Peers {
			if p.State != bgp.Established && p.LastError != "" && !slices.Contains(seen[p.Addr], p.LastError) {
				seen[p.Addr] = append(seen[p.Addr], p.LastError)
			}
		}
		for addr, words := range want {
			if !slices.ContainsFunc(seen[addr], func(text string) bool { return containsAll(text, words) }) {
				return fmt.Errorf("session of %s to %s: want an error with %q, it had %q", s.V4, addr, words, seen[addr])
			}
		}
		return nil
	})
}

func containsAll(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// Usage returns the resources that the process has used since its start.
func (s *Speaker) Usage() usagetest.Usage {
	s.T.Helper()
	return usagetest.Of(s.T, s.cmd.Process.Pid)
}

// Peers returns the state of all sessions.
func (s *Speaker) Peers() []bgp.PeerStatus {
	s.T.Helper()
	return s.Call(Call{Method: "Peers"}).Peers
}

// Log returns the process's log.
func (s *Speaker) Log() string { return s.log.String() }
