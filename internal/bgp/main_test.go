//go:debug multipathtcp=0
package bgp_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

// childArg as the only argument makes the test binary a speaker that is driven over its standard input. GoBGP can only be
// had once in a process, so each speaker of a test is a process, in a network namespace of its own.
const childArg = "bgp-speaker"

// noMD5Env is set for a speaker that is to believe that its kernel has no TCP MD5 signatures.
const noMD5Env = "BGP_TEST_NO_MD5"

// pipeArg makes the test binary a TCP connection from one address to another that is its standard input and output.
const pipeArg = "bgp-pipe"

func pipe(from, to string) error {
	local, err := net.ResolveTCPAddr("tcp", from)
	if err != nil {
		return err
	}
	dialer := net.Dialer{LocalAddr: local, Timeout: callTimeout}
	conn, err := dialer.Dial("tcp", to)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(os.Stdout, conn)
	return err
}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if child, err := bgptest.Child(); child {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 4 && os.Args[1] == pipeArg {
		if err := pipe(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 3 && os.Args[1] == aloneArg {
		if err := alone(os.Args[2] == inConfederation, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 4 && os.Args[1] == crowdArg {
		if err := crowd(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	// The tests of sessions wait for timers most of the time.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("16"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// call is a method of bgp.Speaker and its arguments, reply its results.
type call struct {
	Method  string
	Timeout time.Duration
	Local   bgp.Local
	Peers   []bgp.Peer
	Paths   []bgp.Path
	Within  []netip.Prefix // nil accepts all
	Mode    bgp.Mode
}

type reply struct {
	Err        string
	NotStarted bool
	Stopped    bool
	Paths      []bgp.Path
	Peers      []bgp.PeerStatus
	Traffic    map[netip.Addr]bgp.Traffic
	Totals     bgp.Totals
	Memory     runtime.MemStats
}

func serve(in io.Reader, out io.Writer) error {
	if os.Getenv(noMD5Env) != "" {
		bgp.ForgetMD5()
	}
	var level slog.LevelVar
	level.Set(slog.LevelDebug)
	handler := &wedge{Handler: slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: &level})}
	log := slog.New(handler)
	speaker, err := bgp.New(log, nil)
	if err != nil {
		return err
	}
	if _, err := bgp.New(log, nil); err == nil {
		return errors.New("a second speaker in one process was created")
	}
	calls, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var c call
		if err := calls.Decode(&c); errors.Is(err, io.EOF) {
			return nil // exit without a word to anybody
		} else if err != nil {
			return err
		}
		switch c.Method {
		case "Wedge":
			handler.shut.Store(true)
		case "Quiet":
			level.Set(slog.LevelWarn)
		}
		if err := replies.Encode(answer(speaker, c)); err != nil {
			return err
		}
	}
}

// wedge is a log handler that never returns from an entry of GoBGP's loop once it is shut.
type wedge struct {
	slog.Handler
	shut atomic.Bool
}

func (w *wedge) Handle(ctx context.Context, record slog.Record) error {
	if w.shut.Load() && record.Message == "Add a peer configuration" {
		select {}
	}
	return w.Handler.Handle(ctx, record)
}

func answer(speaker bgp.Speaker, c call) reply {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	var r reply
	var err error
	switch c.Method {
	case "Start":
		err = speaker.Start(ctx, c.Local)
	case "SetPeers":
		err = speaker.SetPeers(ctx, c.Peers)
	case "SetOriginated":
		err = speaker.SetOriginated(ctx, c.Paths)
	case "Snapshot":
		var accept bgp.Accept
		if c.Within != nil {
			accept = bgp.Within(c.Within...)
		}
		r.Paths, err = speaker.Snapshot(ctx, accept)
	case "Traffic":
		r.Traffic, r.Totals = speaker.Traffic(), speaker.Totals()
	case "Peers":
		r.Peers, err = speaker.Peers(ctx)
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
	case "AskGoBGP":
		speaker.(*bgp.Server).AskGoBGP()
	case "AskRelay":
		speaker.(*bgp.Server).AskRelay()
	case "Wedge", "Quiet":
	case "Memory":
		debug.FreeOSMemory()
		runtime.ReadMemStats(&r.Memory)
	default:
		err = fmt.Errorf("no method %q", c.Method)
	}
	if err != nil {
		r.Err = err.Error()
		r.NotStarted, r.Stopped = errors.Is(err, bgp.ErrNotStarted), errors.Is(err, bgp.ErrStopped)
	}
	return r
}
