package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAnswers asks the machine's containerd: it listens, with its runtime for the kubelet or without.
func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct{ disabled, want string }{
		"ready":      {"", ""},
		"not served": {`"io.containerd.grpc.v1.cri"`, "unknown service"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "cri") // a socket's path is short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			socket, config := filepath.Join(dir, "s"), filepath.Join(dir, "c.toml")
			text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [%s]\n[grpc]\n  address = %q\n[ttrpc]\n  address = %q\n",
				dir+"/root", dir+"/state", c.disabled, socket, socket+".ttrpc")
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := Answers(t.Context(), socket); err == nil {
				t.Fatal("nobody answers")
			}
			cmd := exec.Command("/usr/bin/containerd", "--config", config)
			var log strings.Builder
			cmd.Stderr = &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err = waitFor(ctx, "containerd", nil, func() error {
				err := Answers(ctx, socket)
				if err != nil && c.want != "" && strings.Contains(err.Error(), c.want) {
					return nil
				}
				return err
			})
			if err != nil {
				t.Errorf("%v\n%s", err, log.String())
			}
		})
	}
}
