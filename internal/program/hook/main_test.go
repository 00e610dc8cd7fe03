package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/install/traffic"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// say runs the program and returns its output.
func say(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, &out, &out)
	return out.String(), err
}

func TestWrongArguments(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		errtest.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "command"},
		{[]string{"defs"}, `"defs" definitions probe test uninstall`},
		{[]string{"uninstall", "now"}, `"now"`},
		{[]string{"definitions", "-dir", t.TempDir()}, "definitions"},
		{[]string{"uninstall", "-pod", filepath.Join(dir, "none")}, "no such file"},
		{[]string{"uninstall", "-pod", file("odd.yaml", "kind: Pod\nspeck: {}\n")}, `"speck"`},
		{[]string{"uninstall", "-pod", file("empty.yaml", "kind: Pod\n")}, "containers"},
		{[]string{"uninstall", "-pod", file("pod.yaml", "spec: {containers: [{name: a}]}"), "-kubeconfig", filepath.Join(dir, "none")},
			"no such file"},
		{[]string{"test", "-owner", "me"}, `"me" name/uid`},
		{[]string{"probe"}, "-listen -to"},
		{[]string{"probe", "-listen", "-to", "10.0.0.1"}, "-listen -to"},
		{[]string{"probe", "-to", "10.0.0.1.5"}, "-to"},
	} {
		if _, err := say(t, c.args...); !errtest.Names(err, c.want) {
			t.Errorf("hook %q: %v, want %q", c.args, err, c.want)
		}
	}
	if out, err := say(t, "help"); err != nil || !strings.Contains(out, "  uninstall ") {
		t.Errorf("help: %v, %s", err, out)
	}
}

// TestProbe has two probes talk over loopback.
func TestProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- run(ctx, []string{"probe", "-listen", "-port", "47007"}, &bytes.Buffer{}, &bytes.Buffer{})
	}()
	result := filepath.Join(t.TempDir(), "result")
	if out, err := say(t, "probe", "-to", "127.0.0.1,127.0.0.1", "-port", "47007", "-result", result); err != nil ||
		strings.Count(out, "25 of 25") != 2 {
		t.Errorf("%v: %s", err, out)
	}
	text, err := os.ReadFile(result)
	errtest.Must(t, err)
	var results []traffic.Result
	if err := json.Unmarshal(text, &results); err != nil || len(results) != 2 || len(text) > 4096 {
		t.Errorf("%v in %d bytes: %s", err, len(text), text)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
