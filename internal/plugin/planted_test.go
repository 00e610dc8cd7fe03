package plugin_test

import (
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"

	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/plugin/journal"
)

// TestEndlessInput: more on standard input than any configuration has is an error, and is not taken into memory.
func TestEndlessInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	for _, plugin := range []string{"calico", "calico-ipam"} {
		c := s.call(t, "ADD")
		c.plugin, c.stdin = plugin, c.stdin+strings.Repeat(" ", 17<<20)
		w.wantFailure(t, w.host.call(t, c), types.ErrDecodingFailure, "standard input", "16777216")
	}
	c := s.call(t, "ADD")
	c.stdin += strings.Repeat(" ", 15<<20)
	w.host.call(t, c).ok(t)
}

// TestPipeForNamespace: a pipe without a writer does not block a plugin. A plugin that waited for one would be killed
// without an error of its own.
func TestPipeForNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	w.host.On(t, func() error { return syscall.Mkfifo("/run/pipe", 0o600) })
	c := s.call(t, "ADD")
	c.netns = "/run/pipe"
	w.wantFailure(t, w.host.call(t, c).undelayed(t), types.ErrInvalidNetNS, "/run/pipe")
}

// TestPlantedLinks has links to files of the host in the place of each file that the plugins write where the agent's
// container may write as well. The plugins, which are root on the host, make, empty and change none of them, and go on.
func TestPlantedLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const outside = "/etc/victims"
	files := []string{"/var/run/calico/ipam.lock", "/var/run/calico/tortie/status", cooldownFile, facts.TokenRefusedFile, facts.GroupFile}
	w.host.On(t, func() error {
		errs := []error{os.MkdirAll(outside+"/journal", 0o755), os.MkdirAll("/var/run/calico/tortie", 0o755),
			os.MkdirAll(filepath.Dir(string(journal.DefaultDir)), 0o755)}
		for _, f := range files {
			errs = append(errs, os.WriteFile(outside+"/"+filepath.Base(f), []byte("kept"), 0o644), os.Symlink(outside+"/"+filepath.Base(f), f))
		}
		return errors.Join(errs...)
	})
	s := w.newPod(t, "web")
	s.add(t).ok(t)
	w.tellFacts(t, nil)
	w.wantStatus(t, 0)
	w.host.On(t, func() error { return os.Symlink(outside+"/journal", string(journal.DefaultDir)) })
	w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, wrongToken))
	if a := s.del(t); a.exit != 0 {
		t.Logf("the DEL without a journal fails, and the runtime repeats it: %s", a.stdout)
	}
	w.host.On(t, func() error {
		return filepath.WalkDir(outside, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != "kept" || filepath.Dir(path) != outside {
				t.Errorf("%s: %q, %v", path, text, err)
			}
			return nil
		})
	})
}
