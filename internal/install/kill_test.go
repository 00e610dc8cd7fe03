package install

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Variables for a child process: the directory below which it works, and what it does; or that it only sleeps.
const (
	helperRoot   = "INSTALL_TEST_ROOT"
	helperDoes   = "INSTALL_TEST_DOES"
	helperSleeps = "INSTALL_TEST_SLEEP"
)

// TestHelperWorks is the child process of the tests that kill one; alone it does nothing.
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
	errtest.Must(t, do())
}

// A process is killed before each of its changes of names, one after the other. After each the runtime has a working
// network or none, and the next run has the same result as an undisturbed one.
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

// worksOrNot checks that a present conflist has all that it needs: Calico's host's files, or this installation's.
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
