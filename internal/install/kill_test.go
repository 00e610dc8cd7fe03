package install

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// What a child process is told: below which directory it works, and what it does; or that it only sleeps.
const (
	helperRoot   = "INSTALL_TEST_ROOT"
	helperDoes   = "INSTALL_TEST_DOES"
	helperSleeps = "INSTALL_TEST_SLEEP"
)

// TestHelperWorks is the child of the tests that kill one; alone it does nothing.
func TestHelperWorks(t *testing.T) {
	root, ok := os.LookupEnv(helperRoot)
	if !ok {
		return
	}
	h := hostBelow(root)
	do := map[string]func() error{
		"install": func() error { return h.installer(fixedToken("secret")).Install(t.Context()) },
		"install on noexec": func() error {
			mount(t, "noexec", h.cfg.HostBinDirs[0], "tmpfs", syscall.MS_NOEXEC, "")
			return h.installer(fixedToken("secret")).Install(t.Context())
		},
		"uninstall": func() error { return Uninstall(t.Context(), h.cfg.InstallHost, slog.New(slog.DiscardHandler)) },
		"rollback":  func() error { return Rollback(t.Context(), h.cfg.InstallHost, slog.New(slog.DiscardHandler)) },
	}[os.Getenv(helperDoes)]
	if _, err := os.Stdout.WriteString("x"); err != nil && !errors.Is(err, fs.ErrInvalid) && !strings.Contains(err.Error(), "bad file") {
		t.Fatal(err)
	}
	errtest.Must(t, do())
}

// A process is killed before each change of a name that it makes, one after the other. Whatever it left, the runtime has a network that
// works or none, and the next run ends where an undisturbed one would.
func TestKilledBetweenAnyTwoWrites(t *testing.T) {
	installed := func(t *testing.T, h *host) { h.install(t) }
	cases := []struct {
		name   string
		host   func(t *testing.T) *host
		before func(t *testing.T, h *host)
		does   string
		check  func(t *testing.T, h *host)
	}{
		{name: "install", host: newHost, does: "install", check: worksOrNot},
		{name: "install over Calico", host: calicoHost, does: "install", check: hasANetwork},
		{name: "uninstall", host: newHost, before: installed, does: "uninstall", check: worksOrNot},
		{name: "uninstall what replaced Calico", host: calicoHost, before: installed, does: "uninstall", check: worksOrNot},
		{name: "rollback", host: calicoHost, before: installed, does: "rollback", check: hasANetwork},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n := 0
			for killed := true; killed; n++ {
				h := c.host(t)
				found := h.tree(t)
				if c.before != nil {
					c.before(t, h)
				}
				killed = killAt(t, n, helperRoot+"="+filepath.Dir(h.cfg.SourceDir), helperDoes+"="+c.does)
				c.check(t, h)
				if c.does == "install" {
					h.install(t)
					files := h.files(t)
					for _, want := range wholeHost {
						if !slices.Contains(files, want) {
							t.Fatalf("killed before change %d: after the next run there is no %s in %q", n, want, files)
						}
					}
				}
				h.uninstall(t)
				if diff := cmp.Diff(found, h.tree(t)); diff != "" {
					t.Fatalf("killed before change %d, after it is uninstalled (-before +after):\n%s", n, diff)
				}
			}
			if n < 8 {
				t.Errorf("only %d changes: the test tests little", n)
			}
		})
	}
}

// worksOrNot checks that a conflist that is there has all that it needs: of Calico's host, or of this installation.
func worksOrNot(t *testing.T, h *host) {
	t.Helper()
	if conflist, err := os.ReadFile(h.net("10-calico.conflist")); err == nil {
		wholeNetwork(t, h, string(conflist))
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// hasANetwork checks that there is a conflist too.
func hasANetwork(t *testing.T, h *host) {
	t.Helper()
	wholeNetwork(t, h, read(t, h.net("10-calico.conflist")))
}

// wholeNetwork checks each file by itself: plugins of either serve a conflist of either with a kubeconfig of either.
func wholeNetwork(t *testing.T, h *host, conflist string) {
	t.Helper()
	if !json.Valid([]byte(conflist)) {
		t.Fatalf("conflist is not whole: %s", conflist)
	}
	for _, name := range required {
		if got := read(t, h.bin(name)); got != plugin(name) && got != plugin("Calico's calico") {
			t.Fatalf("%s is not whole: %q", name, got)
		}
	}
	if text := read(t, h.net(KubeconfigName)); text != "Calico's kubeconfig" && !strings.HasSuffix(text, "current-context: calico-context\n") {
		t.Fatalf("kubeconfig is not whole: %q", text)
	}
}

// A process that installs on an empty host is killed at some moment of its work. Whatever it left: every file is whole, what
// a file needs is there, and the next run completes the host.
func TestKilledAtAnyMoment(t *testing.T) {
	whole := hostWithBigPlugins(t)
	start := time.Now()
	whole.install(t)
	span := 2 * time.Since(start)
	const rounds, atLeast = 20, 4
	early := 0
	for n := 0; n < rounds || early < atLeast; n++ {
		h := hostWithBigPlugins(t)
		killDuringInstall(t, filepath.Dir(h.cfg.SourceDir), rand.N(span))
		if conflist := checkLeft(t, h); conflist {
			span = span/2 + time.Millisecond // too late, perhaps as what was measured was slow by chance
		} else {
			span += span / 2
			early++
		}
		h.install(t)
		if diff := cmp.Diff(wholeHost, h.files(t)); diff != "" {
			t.Fatalf("after the next run (-want +got):\n%s", diff)
		}
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
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperWorks$")
	cmd.Env = append(os.Environ(), helperRoot+"="+root, helperDoes+"=install")
	out, err := cmd.StdoutPipe()
	errtest.Must(t, err)
	errtest.Must(t, cmd.Start())
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the child did not start: %v", err)
	}
	<-time.After(after)
	_ = cmd.Process.Kill() // it may have ended
	_ = cmd.Wait()
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
	if kc, err := kubernetes.LoadKubeconfig(h.net(KubeconfigName)); err != nil || kc.Token != "secret" {
		t.Fatalf("there is a conflist, but the kubeconfig is %+v, %v", kc, err)
	}
	for _, name := range required {
		read(t, h.bin(name))
	}
	return true
}
