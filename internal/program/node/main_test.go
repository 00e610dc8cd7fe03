package node

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func execute(t *testing.T, env map[string]string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	lookup := func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}
	var out, errs bytes.Buffer
	err = run(t.Context(), args, lookup, nodestatus.Output{Out: &out, Err: &errs})
	return out.String(), errs.String(), err
}

// The commands find the agent by the variables for its address, and need no others.
func TestCommandsFindTheAgent(t *testing.T) {
	server := httptest.NewServer(agent.NewStatus("node1", time.Now(), nil).Handler())
	defer server.Close()
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	errtest.Must(t, err)
	env := map[string]string{"FELIX_HEALTHHOST": host, "FELIX_HEALTHPORT": port}
	for _, command := range []string{"status", "peers", "routes"} {
		if out, _, err := execute(t, env, command); err != nil || out == "" {
			t.Errorf("node %s: %v, %q", command, err, out)
		}
	}
	if out, _, err := execute(t, env, "cleanup", "-dry-run"); err == nil || out != "" || !strings.Contains(err.Error(), "node1") {
		t.Errorf("node cleanup beside an agent: %v, %q", err, out)
	}
	waiting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"node": "node1", "policy": {"mode": "auto", "reason": "felix"}}`)
	}))
	defer waiting.Close()
	at := strings.TrimPrefix(waiting.URL, "http://")
	if out, _, err := execute(t, nil, "cleanup", "-dry-run", "-address", at, "calico"); err == nil || out != "" ||
		!strings.Contains(err.Error(), "TORTIE_REMOVE_CALICO_RULES") {
		t.Errorf("node cleanup calico beside an agent that leaves policies to Felix: %v, %q", err, out)
	}
	if out, _, err := execute(t, nil, "status", "-address", host+":"+port, "-o", "json"); err != nil ||
		!strings.Contains(out, `"node": "node1"`) {
		t.Errorf("node status -address: %v\n%s", err, out)
	}
}

// TestHelpOfEachCommand: purpose, arguments and an example, without an agent; wrong arguments have another exit code
// than problems of the node.
func TestHelpOfEachCommand(t *testing.T) {
	var other interface{ ExitCode() int }
	for _, command := range []string{"status", "peers", "routes", "flows", "policy", "diagnose", "rotate", "cleanup"} {
		for _, args := range [][]string{{command, "-h"}, {"help", command}} {
			out, help, err := execute(t, nil, args...)
			if !errors.Is(err, flag.ErrHelp) || out != "" || !strings.Contains(help, "usage: node "+command) || !strings.Contains(help, "xample") {
				t.Errorf("node %v: %v, %q, %q", args, err, out, help)
			}
		}
		for _, args := range [][]string{{command, "-nonsense"}, {command, "a b", "c d", "e f"}} {
			if _, _, err := execute(t, map[string]string{"NODENAME": "n"}, args...); !errors.As(err, &other) || other.ExitCode() != 2 {
				t.Errorf("node %v: %v, want exit code 2", args, err)
			}
		}
	}
	if out, _, err := execute(t, nil, "help"); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out, "Exit codes") {
		t.Errorf("node help: %v, %q", err, out)
	}
	if _, _, err := execute(t, nil, "stats"); !errors.As(err, &other) || other.ExitCode() != 2 {
		t.Errorf("an unknown command: %v", err)
	}
	for _, version := range []string{"version", "-version", "--version"} {
		if out, _, err := execute(t, nil, version); err != nil || !strings.HasPrefix(out, "Tortie node") {
			t.Errorf("node %s: %v, %q", version, err, out)
		}
	}
}

// The command leaves a request for the agent.
func TestRotate(t *testing.T) {
	env := map[string]string{"TORTIE_STATE_DIR": t.TempDir()}
	if _, _, err := execute(t, env, "rotate", "now"); err == nil {
		t.Error("an argument is accepted")
	}
	out, _, err := execute(t, env, "rotate")
	text, unread := os.ReadFile(filepath.Join(env["TORTIE_STATE_DIR"], "tortie", "wireguard-rotate"))
	if _, unclear := time.Parse(time.RFC3339Nano, string(text)); err != nil || !strings.HasPrefix(out, "asked") ||
		unread != nil || unclear != nil {
		t.Errorf("%q, %v; %v, %v", out, err, unread, unclear)
	}
}

func TestErrorsNameTheRemedy(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	free.Close()
	_, port, _ := net.SplitHostPort(free.Addr().String())
	for _, c := range []struct {
		env  map[string]string
		args []string
		want []string
	}{
		{map[string]string{"FELIX_HEALTHPORT": port}, []string{"status"},
			[]string{"127.0.0.1:" + port, "this machine is not judged", "kubectl -n kube-system exec"}},
		{map[string]string{"FELIX_HEALTHPORT": "x"}, []string{"status"}, []string{"FELIX_HEALTHPORT", `"x"`, "65535"}},
		{nil, []string{"stats"}, []string{`"stats"`, "peers", "routes", "status"}},
		{nil, []string{"cleanup", "-dry-run", "x"}, []string{"arguments"}},
		{nil, []string{"cleanup", "-dry-run", "-all", "calico"}, []string{"-all"}},
		{map[string]string{"TORTIE_ROUTE_PROTOCOL": "kernel"}, []string{"cleanup", "-dry-run"}, []string{"TORTIE_ROUTE_PROTOCOL", `"kernel"`}},
		{nil, nil, []string{"NODENAME"}}, // the agent itself
	} {
		out, _, err := execute(t, c.env, c.args...)
		if err == nil || out != "" {
			t.Errorf("node %v: error %v, wrote %q", c.args, err, out)
			continue
		}
		difftest.Contains(t, err.Error(), c.want...)
	}
}

func TestHelpAndVersion(t *testing.T) {
	_, help, err := execute(t, nil, "-h")
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	difftest.Contains(t, help, append(nodestatus.Commands(), "-o text|json|yaml", "-v", "policy", "diagnose", "cleanup")...)
	if out, _, err := execute(t, nil, "-v"); err != nil || !strings.HasPrefix(out, "Tortie node") {
		t.Errorf("-v: %v, %q", err, out)
	}
}
