package nft_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// woken waits for one wake-up.
func woken(t *testing.T, wake <-chan struct{}) {
	t.Helper()
	select {
	case _, ok := <-wake:
		if !ok {
			t.Fatal("the channel is closed")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("not woken")
	}
}

// TestEvents goes through changes by this table, which do not wake, and by others, which do. The kernel queues events
// before it answers the transaction that causes them, so that no wait is needed.
func TestEvents(t *testing.T) {
	ns := netnstest.New(t)
	table := nft.New(ns.Namespace)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wake, err := table.Events(ctx)
	errtest.Must(t, err)
	count, err := table.CountForeign(t.Context())
	errtest.Must(t, err)
	quiet := func(after string) {
		t.Helper()
		if n, err := count(); err != nil || n > 0 {
			t.Errorf("%s: %d changes by others, %v", after, n, err)
		}
	}
	syncPart(t, table, policy())
	changed := policy()
	changed.Sets[3].Elements = nil
	syncPart(t, table, changed)
	syncPart(t, table, policy())
	quiet("own writes")
	ns.Run(t, "nft",
		"add table inet foreign; add chain inet foreign c; add rule inet foreign c counter; add table ip tortie; delete table ip tortie")
	quiet("others' tables")
	select {
	case <-wake:
		t.Error("woken although there was no change by others")
	default:
	}

	for _, script := range []string{
		"flush chain inet tortie policy-forward", "delete element inet tortie policy-marks { 10.0.0.9 }", "flush set inet tortie policy-net6",
		"add chain inet tortie another", "add table inet tortie { flags dormant; }", "delete table inet tortie",
		// in the middle of a transaction
		"add table inet foreign; delete table inet foreign; add table inet tortie; add chain inet tortie x; add table inet foreign",
	} {
		ns.Run(t, "nft", script)
		woken(t, wake)
		if n, err := count(); err != nil || n == 0 {
			t.Errorf("%s: %d changes by others, %v", script, n, err)
		}
		syncPart(t, table, policy())
		quiet("the repair of: " + script)
	}
	cancel()
	for deadline := time.After(20 * time.Second); ; {
		select {
		case _, ok := <-wake:
			if !ok {
				return
			}
		case <-deadline:
			t.Fatal("the channel stays open after the end of its context")
		}
	}
}

// TestEventsAreCoalesced: more events than the socket holds come before a read.
func TestEventsAreCoalesced(t *testing.T) {
	needtest.Root(t, "SO_SNDBUFFORCE, by which nft sends a large script")
	ns := netnstest.New(t)
	table := nft.New(ns.Namespace)
	wake, err := table.Events(t.Context())
	errtest.Must(t, err)
	var script strings.Builder
	script.WriteString("add table inet tortie\nadd set inet tortie many { type ipv4_addr; }\n")
	for i := range 5000 {
		fmt.Fprintf(&script, "add element inet tortie many { 10.0.%d.%d }\n", i/256, i%256)
	}
	file := filepath.Join(t.TempDir(), "script")
	errtest.Must(t, os.WriteFile(file, []byte(script.String()), 0o644))
	for range 3 {
		ns.Run(t, "nft", "-f", file)
		ns.Run(t, "nft", "delete table inet tortie")
	}
	woken(t, wake)
	ns.Run(t, "nft", "add table inet tortie")
	woken(t, wake)
}
