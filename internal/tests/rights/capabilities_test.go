package rights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// bits are the numbers of the capabilities that the chart grants the agent.
var bits = map[corev1.Capability]int{
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
}

// agentCapabilities returns the capabilities that the chart grants the agent.
func agentCapabilities(t *testing.T) []corev1.Capability {
	t.Helper()
	for _, c := range templates(t)["DaemonSet tortie-node"].Containers {
		if c.Name == "node" {
			return c.SecurityContext.Capabilities.Add
		}
	}
	t.Fatal("the chart has no agent")
	return nil
}

// confined returns a launcher that executes a program with only these capabilities and no_new_privs, as a container
// runtime does.
func confined(capabilities []corev1.Capability) []string {
	set := "-all"
	for _, c := range capabilities {
		set += ",+" + strings.ToLower(string(c))
	}
	return []string{"setpriv", "--no-new-privs", "--bounding-set", set}
}

// wantConfined fails the test unless a process has these capabilities and no others.
func wantConfined(t *testing.T, pid int, capabilities []corev1.Capability) {
	t.Helper()
	var want uint64
	for _, c := range capabilities {
		want |= 1 << bits[c]
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	errtest.Must(t, err)
	for line := range bytes.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), ":\t")
		if name != "CapEff" && name != "CapBnd" {
			continue
		}
		if got, err := strconv.ParseUint(value, 16, 64); err != nil || got != want {
			t.Errorf("the agent has %s %s, want %x", name, value, want)
		}
	}
}

// capabilities tests that the agents, which have passed all parts with exactly the chart's capabilities, need each of
// them.
func (l *life) capabilities(t *testing.T) {
	all := agentCapabilities(t)
	wantConfined(t, l.first.Cmd.Process.Pid, all)
	without := func(c corev1.Capability) []string {
		return confined(slices.DeleteFunc(slices.Clone(all), func(has corev1.Capability) bool { return has == c }))
	}
	for _, c := range all {
		switch c {
		case "NET_ADMIN":
			l.replace(t, without(c))
			meshtest.Eventually(t, func() error { return l.logged("operation not permitted", "CAP_NET_ADMIN") })
			if l.first.Probe("/readyz") == nil {
				t.Error("an agent without NET_ADMIN is ready")
			}
		case "NET_BIND_SERVICE":
			l.replace(t, without(c))
			meshtest.Eventually(t, func() error { return l.logged("listen for BGP on", "capability NET_BIND_SERVICE is missing") })
			l.reported(t, "BGPPortTaken", 1)
			l.replace(t, without(c))
			l.reported(t, "BGPPortTaken", 2) // the next agent updates the count, which needs another permission
		case "NET_RAW":
			l.replace(t, confined(all))
			l.probes(t, confined(all), "")
			l.probes(t, without(c), "or with the capability NET_RAW")
		default:
			t.Errorf("the agent works without %s", c)
		}
	}
}

// replace stops the first node's agent and starts it with another launcher. The start may fail; logged checks for it.
func (l *life) replace(t *testing.T, launcher []string) {
	t.Helper()
	l.first.End(t)
	errtest.Must(t, os.Truncate(filepath.Join(l.first.Dir, "agent.log"), 0))
	before := l.Launcher
	l.Launcher = launcher
	l.first.Start(t, meshtest.Build)
	l.Launcher = before
}

// logged returns nil if the first node's agent has logged all texts.
func (l *life) logged(texts ...string) error {
	log := l.first.Tail(1 << 20)
	for _, text := range texts {
		if !strings.Contains(log, text) {
			return fmt.Errorf("the agent has not logged %q:\n%s", text, log)
		}
	}
	return nil
}

// probes runs node diagnose, and waits for its advice about the tunnel to another node; "" expects that its probe was
// answered.
func (l *life) probes(t *testing.T, launcher []string, advice string) {
	t.Helper()
	command := append(slices.Clone(launcher), meshtest.Program(t, meshtest.Build), "diagnose", "-o", "json")
	meshtest.Eventually(t, func() error {
		out, err := l.first.Try(command[0], command[1:]...)
		_, text, _ := strings.Cut(out, "\n{")
		var d nodestatus.Diagnosis
		if err := json.NewDecoder(strings.NewReader("{" + text)).Decode(&d); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for _, f := range d.Findings {
			if f.Check == "peer-vxlan" && (advice == "" && f.Level == nodestatus.OK || advice != "" && strings.Contains(f.Do, advice)) {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("no finding of peer-vxlan with %q: %s", advice, out))
	})
}
