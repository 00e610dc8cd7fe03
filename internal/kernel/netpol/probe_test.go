package netpol_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/nfttest"
)

// words are those of a ruleset as nft lists it, without names and numbers.
func words(text string) []string {
	all := regexp.MustCompile(`\b[a-z][a-z ]*[a-z]\b`).FindAllString(regexp.MustCompile(`"[^"]*"|[a-z0-9]+-[a-z0-9-]+|0x\w+|[0-9a-f.:]+[:.][0-9a-f.:]*`).ReplaceAllString(text, " "), -1)
	slices.Sort(all)
	return slices.Compact(all)
}

// TestProbe: what is probed has all that a Ruleset that uses everything has, and a probe leaves no trace.
func TestProbe(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	mustSync(t, e, sample())
	before, generation := list(t, ns), nfttest.Generation(t, ns)
	if err := e.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := list(t, ns); after != before || nfttest.Generation(t, ns) != generation {
		t.Errorf("has changed:\n%s", after)
	}
	steady(t, ns, e, sample())

	other := netnstest.New(t)
	mustSync(t, newEngine(t, other), netpol.Everything())
	probed := words(list(t, other))
	for _, w := range words(before) {
		if !slices.Contains(probed, w) {
			t.Errorf("%q is not probed, but only %q", w, probed)
		}
	}
}

// TestProbeNames: what the kernel lacks is named, and besides that it cannot log.
func TestProbeNames(t *testing.T) {
	e := netpol.New(nil, "cali")
	lacks := func(expressions ...string) error {
		return e.ProbeBy(func(*nft.Change) error {
			if len(expressions) == 0 {
				return nil
			}
			name := expressions[0]
			expressions = expressions[1:]
			return &nft.Refused{Object: "egress", Expression: name, Err: unix.ENOENT}
		})
	}
	if err := lacks(); err != nil {
		t.Errorf("a kernel that has everything: %v", err)
	}
	if err := lacks("log"); !errors.Is(err, netpol.ErrNoLog) || errors.Is(err, netpol.ErrLacks) || !strings.Contains(err.Error(), "nft_log") {
		t.Errorf("a kernel that cannot log: %v", err)
	}
	if err := lacks("ct"); errors.Is(err, netpol.ErrNoLog) || !errors.Is(err, netpol.ErrLacks) || !strings.Contains(err.Error(), "nft_ct") {
		t.Errorf("a kernel without connections: %v", err)
	}
	if err := lacks("limit", "ct"); !errors.Is(err, netpol.ErrNoLog) || !errors.Is(err, netpol.ErrLacks) || !strings.Contains(err.Error(), "nft_ct") {
		t.Errorf("a kernel without both: %v", err)
	}
}
