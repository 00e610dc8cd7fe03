package policyview

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/config"
)

// Errors name the argument and the remedy, and nothing is written then. The API server's address has no server.
func TestCommandErrors(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"node": "n"}`) }))
	t.Cleanup(agent.Close)
	dir := t.TempDir()
	kubeconfig, policies := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "policies.yaml")
	for file, text := range map[string]string{
		kubeconfig: `{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: ` +
			`"http://127.0.0.1:1"}}], users: [{name: u}]}`,
		policies: "kind: Pod\napiVersion: v1",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		node string
		args []string
		want []string
	}{
		{"", nil, []string{"NODENAME", "-node"}},
		{"n", []string{"-o", "yaml"}, []string{`-o "yaml"`, "json"}},
		{"n", []string{"expain"}, []string{"policies and pods"}}, // it may be a pod's name
		{"n", []string{"10.0.0.1"}, []string{`"10.0.0.1"`, "NAMESPACE/POD"}},
		{"n", []string{"explain", "a"}, []string{"FROM TO:PORT"}},
		{"n", []string{"explain", "a", "b"}, []string{`TO "b"`, ":PORT"}},
		{"n", []string{"diff"}, []string{"-f FILE"}},
		{"n", []string{"diff", "-f", dir + "/none"}, []string{"-f", "no such file"}},
		{"n", []string{"diff", "-f", policies}, []string{policies, "document 1", `kind "Pod"`}},
		{"n", []string{"explain", "a", "b:80"}, []string{"127.0.0.1:1", "policy.enabled"}},
	} {
		var out, diag bytes.Buffer
		err := Main(t.Context(), c.args, config.PolicyView{Nodename: c.node, Kubeconfig: kubeconfig,
			HealthAddr: strings.TrimPrefix(agent.URL, "http://")}, nodestatus.Output{Out: &out, Err: &diag})
		if err == nil || out.Len() > 0 {
			t.Errorf("%q: %v, wrote %q", c.args, err, out.String())
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v; want %q in it", c.args, err, want)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"explain", "-h"}, {"diff", "-h"}} {
		var out, diag bytes.Buffer
		err := Main(t.Context(), args, config.PolicyView{Nodename: "n"}, nodestatus.Output{Out: &out, Err: &diag})
		if !errors.Is(err, flag.ErrHelp) || !strings.Contains(diag.String(), "node policy explain [flags] FROM TO:PORT") {
			t.Errorf("%q: %v, %q", args, err, diag.String())
		}
	}
}
