//go:debug multipathtcp=0
package bgp_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

// noSigningEnv is set for a speaker that is to believe that its kernel has neither TCP MD5 signatures nor TCP-AO.
const noSigningEnv = "BGP_TEST_NO_SIGNING"

// slowEnv is how long Start of a speaker is to take at least.
const slowEnv = "BGP_TEST_START_TAKES"

func TestMain(m *testing.M) {
	if child, err := child(); child {
		if err != nil {
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

// child runs the speaker of a test in a process of its own.
func child() (was bool, err error) {
	if os.Getenv(noSigningEnv) != "" {
		bgp.ForgetSigning()
	}
	if takes, err := time.ParseDuration(os.Getenv(slowEnv)); err == nil {
		bgp.StartSlowly(takes)
	}
	var level slog.LevelVar
	level.Set(slog.LevelDebug)
	handler := &wedge{Handler: slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: &level})}
	return bgptest.ChildWith(handler, map[string]func(*bgp.Server) string{
		"Neighbours": (*bgp.Server).Neighbours,
		"Goroutines": func(*bgp.Server) string { return strconv.Itoa(runtime.NumGoroutine()) },
		"ReadAnew":   (*bgp.Server).ReadAnew,
		"Quiet":      func(*bgp.Server) string { level.Set(slog.LevelWarn); return "" },
		"Second":     second,
		"Wedge":      func(*bgp.Server) string { handler.shut.Store(true); return "" },
	})
}

// second ends a process that can have another speaker.
func second(*bgp.Server) string {
	if _, err := bgp.New(slog.New(slog.DiscardHandler), nil); err == nil {
		panic("a second speaker in one process was created")
	}
	return ""
}

// wedge is a log handler that never returns from an entry of GoBGP's loop once it is shut.
type wedge struct {
	slog.Handler
	shut atomic.Bool
}

func (w *wedge) Handle(ctx context.Context, record slog.Record) error {
	if w.shut.Load() && record.Message == "delete policy" {
		select {}
	}
	return w.Handler.Handle(ctx, record)
}
