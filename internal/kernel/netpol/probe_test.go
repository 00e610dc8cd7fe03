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

// words returns the words of a ruleset as nft lists it, without names and numbers.
func words(text string) []string {
	all := regexp.MustCompile(`\b[a-z][a-z ]*[a-z]\b`).FindAllString(
		regexp.MustCompile(`"[^"]*"|[a-z0-9]+-[a-z0-9-]+|0x\w+|[0-9a-f.:]+[:.][0-9a-f.:]*`).ReplaceAllString(text, " "), -1)
	slices.Sort(all)
	return slices.Compact(all)
}

// TestProbe: the probe has every feature of a Ruleset, and leaves no trace.
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
	if err := lacks("limit", "ct"); !errors.Is(err, netpol.ErrNoLog) || !errors.Is(err, netpol.ErrLacks) ||
		!strings.Contains(err.Error(), "nft_ct") {
		t.Errorf("a kernel without both: %v", err)
	}
}

// TestProbeWithoutAnAnswer: an error that may pass is no lack of the kernel.
func TestProbeWithoutAnAnswer(t *testing.T) {
	e := netpol.New(nil, "cali")
	refused := func(err error) error { return &nft.Refused{Object: "egress", Err: err} }
	for name, c := range map[string]struct {
		err   error
		lacks bool
	}{
		"no socket":       {unix.EMFILE, false},
		"busy":            {refused(unix.EBUSY), false},
		"interrupted":     {refused(unix.EINTR), false},
		"no buffers":      {refused(unix.ENOBUFS), false},
		"no memory":       {refused(unix.ENOMEM), false},
		"no rights":       {refused(unix.EPERM), false},
		"no such part":    {refused(unix.ENOENT), true},
		"invalid request": {refused(unix.EINVAL), true},
		"not supported":   {refused(unix.EOPNOTSUPP), true},
	} {
		t.Run(name, func(t *testing.T) {
			err := e.ProbeBy(func(*nft.Change) error { return c.err })
			if errors.Is(err, netpol.ErrLacks) != c.lacks || errors.Is(err, netpol.ErrNotProbed) == c.lacks || !errors.Is(err, c.err) {
				t.Errorf("%v", err)
			}
		})
	}
	asked := 0
	err := e.ProbeBy(func(*nft.Change) error {
		if asked++; asked == 1 {
			return &nft.Refused{Object: "egress", Expression: "log", Err: unix.ENOENT}
		}
		return unix.ENOBUFS
	})
	if !errors.Is(err, netpol.ErrNoLog) || !errors.Is(err, netpol.ErrNotProbed) {
		t.Errorf("a kernel that cannot log, and then has no answer: %v", err)
	}
}
