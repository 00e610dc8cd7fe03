package install

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// helperRoot names the directory in which a child process installs; see TestKilledAtAnyMoment.
const helperRoot = "INSTALL_TEST_ROOT"

// A process that installs on an empty host is killed at some moment of its work. Whatever it left: every file is whole, what
// a file needs is there, and the next run completes the host.
func TestKilledAtAnyMoment(t *testing.T) {
	whole := hostWithBigPlugins(t)
	start := time.Now()
	if err := whole.installer(fixedToken("secret")).Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	usual := time.Since(start)
	const rounds = 60
	early := 0
	for range rounds {
		h := hostWithBigPlugins(t)
		killDuringInstall(t, filepath.Dir(h.cfg.SourceDir), rand.N(2*usual))
		if conflist := checkLeft(t, h); !conflist {
			early++
		}
		if err := h.installer(fixedToken("secret")).Install(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wholeHost, h.files(t)); diff != "" {
			t.Fatalf("after the next run (-want +got):\n%s", diff)
		}
	}
	if early < rounds/6 {
		t.Errorf("%d of %d runs were killed before their end: the test tests little", early, rounds)
	}
}

func bigPlugin(name string) string { return plugin(strings.Repeat(name, 100_000)) }

func hostWithBigPlugins(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	for _, name := range required {
		put(t, filepath.Join(h.cfg.SourceDir, name), bigPlugin(name))
	}
	return h
}

// killDuringInstall starts a child that installs below root, and kills it some time after it began.
func killDuringInstall(t *testing.T, root string, after time.Duration) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperInstalls$")
	cmd.Env = append(os.Environ(), helperRoot+"="+root)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the child did not start: %v", err)
	}
	<-time.After(after)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // always an error: it was killed
}

// TestHelperInstalls is the child of TestKilledAtAnyMoment; alone it does nothing.
func TestHelperInstalls(t *testing.T) {
	root, ok := os.LookupEnv(helperRoot)
	if !ok {
		return
	}
	if _, err := os.Stdout.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if err := hostBelow(root).installer(fixedToken("secret")).Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {} // the parent kills this process
}

// checkLeft checks what a killed run left behind and reports whether the conflist was there.
func checkLeft(t *testing.T, h *host) (conflist bool) {
	t.Helper()
	for _, name := range required {
		text, err := os.ReadFile(h.bin(name))
		if err == nil && string(text) != bigPlugin(name) {
			t.Fatalf("%s has %d bytes: it is not whole", name, len(text))
		}
	}
	text, err := os.ReadFile(h.net("10-calico.conflist"))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if !json.Valid(text) {
		t.Fatalf("conflist is not whole: %q", text)
	}
	var kc kubeconfig
	if err := yaml.Unmarshal([]byte(read(t, h.net(KubeconfigName))), &kc); err != nil || kc.Users[0].User.Token != "secret" {
		t.Fatalf("there is a conflist, but the kubeconfig is %+v, %v", kc, err)
	}
	for _, name := range required {
		read(t, h.bin(name))
	}
	return true
}
