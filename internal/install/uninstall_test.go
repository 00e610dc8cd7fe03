package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const calicosConflist = `{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[{"type":"calico"}]}`

// calicoHost is a node on which Calico is installed, and the plugins of a distribution.
func calicoHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	for name, text := range map[string]string{
		h.bin("calico"): plugin("Calico's calico"), h.bin("calico-ipam"): plugin("Calico's calico"), h.bin("portmap"): plugin("Debian's portmap"),
		h.bin("ptp"): plugin("Debian's ptp"), h.net("10-calico.conflist"): calicosConflist, h.net(KubeconfigName): "Calico's kubeconfig",
		h.net("99-loopback.conf"): `{"type":"loopback"}`, filepath.Join(h.cfg.StateDir, "nodename"): "node1",
	} {
		put(t, name, text)
		errtest.Must(t, os.Chmod(name, 0o700))
	}
	errtest.Must(t, os.Symlink("calico", h.bin("loopback")))
	return h
}

// tree returns all files below the host's directories: modes and contents by path.
func (h *host) tree(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range []string{h.cfg.HostBinDirs[0], h.cfg.HostNetDir, h.cfg.StateDir, h.cfg.RunDir} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			var content []byte
			switch {
			case info.Mode().IsRegular():
				content, err = os.ReadFile(path)
			case info.Mode().Type() == fs.ModeSymlink:
				var target string
				target, err = os.Readlink(path)
				content = []byte("-> " + target)
			}
			all[path] = fmt.Sprintf("%s %s", info.Mode(), content)
			return err
		})
		errtest.Must(t, err)
	}
	return all
}

func (h *host) install(t *testing.T) {
	t.Helper()
	errtest.Must(t, h.installer(fixedToken("secret")).Install(t.Context()))
}

func (h *host) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&h.log, nil)) }

func (h *host) uninstall(t *testing.T) {
	t.Helper()
	errtest.Must(t, Uninstall(t.Context(), h.cfg.InstallHost, h.logger()))
}

// live writes the files of a running agent and plugins.
func (h *host) live(t *testing.T) {
	t.Helper()
	for _, dir := range []string{filepath.Join(h.cfg.RunDir, "tortie"), filepath.Join(h.cfg.StateDir, "tortie/journal")} {
		errtest.Must(t, os.MkdirAll(dir, 0o755))
	}
	put(t, filepath.Join(h.cfg.RunDir, "tortie/facts.json"), "{}")
	put(t, filepath.Join(h.cfg.RunDir, "ipam.lock"), "")
	put(t, filepath.Join(h.cfg.StateDir, "tortie/journal/one.json"), "{}")
	put(t, filepath.Join(h.cfg.StateDir, "nodename"), "node1")
	put(t, filepath.Join(h.cfg.StateDir, "mtu"), "1480")
}

func TestUninstallLeavesTheHostAsItWas(t *testing.T) {
	cases := []struct {
		name string
		host func(t *testing.T) *host
		life func(t *testing.T, h *host)
	}{
		{"empty host", newHost, func(t *testing.T, h *host) { h.install(t); h.live(t) }},
		{"Calico's host", calicoHost, func(t *testing.T, h *host) { h.install(t) }},
		{"after upgrades", calicoHost, func(t *testing.T, h *host) {
			h.install(t)
			for n := range 2 * remembered {
				put(t, filepath.Join(h.cfg.SourceDir, "portmap"), plugin(fmt.Sprint("newer ", n)))
				h.cfg.MTU = 1400 + n
				h.install(t)
			}
		}},
		{"another name of the conflist", calicoHost, func(t *testing.T, h *host) {
			h.cfg.ConfName = "05-tortie.conflist"
			h.install(t)
			if _, err := os.Stat(h.net("10-calico.conflist")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Calico's conflist under the old name is there yet: %v", err)
			}
		}},
		{"etcd", newHost, func(t *testing.T, h *host) {
			errtest.Must(t, os.Mkdir(h.cfg.TLSDir, 0o755))
			put(t, filepath.Join(h.cfg.TLSDir, etcdCA), "CA")
			put(t, filepath.Join(h.cfg.TLSDir, etcdCert), "cert")
			h.install(t)
		}},
		{"nothing was installed", calicoHost, func(*testing.T, *host) {}},
		{"Calico came back in between", calicoHost, func(t *testing.T, h *host) {
			found := h.tree(t)
			h.install(t)
			for _, name := range []string{"calico", "calico-ipam"} {
				put(t, h.bin(name), plugin("Calico's calico"))
				errtest.Must(t, os.Chmod(h.bin(name), 0o700))
			}
			h.install(t)
			if h.tree(t)[h.bin("calico")] == found[h.bin("calico")] {
				t.Error("the second installation changed nothing")
			}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := c.host(t)
			found := h.tree(t)
			c.life(t, h)
			for range 2 { // it may be repeated
				h.uninstall(t)
				if diff := cmp.Diff(found, h.tree(t)); diff != "" {
					t.Errorf("(-before +after):\n%s", diff)
				}
			}
		})
	}
}

func TestRollbackPutsCalicoBack(t *testing.T) {
	h := calicoHost(t)
	found := h.tree(t)
	h.install(t)
	errtest.Must(t, Rollback(t.Context(), h.cfg.InstallHost, h.logger()))
	if diff := cmp.Diff(found, h.tree(t)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	err := Rollback(t.Context(), h.cfg.InstallHost, h.logger())
	if err == nil || !strings.Contains(err.Error(), ledgerName) {
		t.Errorf("a second rollback: %v", err)
	}
}

// A runtime that reads at any time during a rollback finds one network or the other.
func TestRollbackHasNoGap(t *testing.T) {
	h := calicoHost(t)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if _, err := os.ReadFile(h.net("10-calico.conflist")); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 20 {
		h.install(t)
		errtest.Must(t, Rollback(t.Context(), h.cfg.InstallHost, h.logger()))
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestUninstallLeavesWhatOthersPutThere(t *testing.T) {
	h := newHost(t)
	h.install(t)
	put(t, h.bin("portmap"), plugin("somebody's portmap"))
	h.uninstall(t)
	if got := read(t, h.bin("portmap")); got != plugin("somebody's portmap") {
		t.Errorf("portmap is %q", got)
	}
	if log := h.log.String(); !strings.Contains(log, "left on the host") || !strings.Contains(log, h.bin("portmap")) {
		t.Errorf("the log does not name it:\n%s", log)
	}
	if left := h.files(t); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// A conflist that an operator has edited still names plugins that will be removed.
func TestUninstallRemovesAnEditedConflist(t *testing.T) {
	h := newHost(t)
	h.install(t)
	put(t, h.net("10-calico.conflist"), calicosConflist)
	h.uninstall(t)
	if left := h.files(t); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestNothingIsKeptWithoutAPlace(t *testing.T) {
	h := calicoHost(t)
	h.cfg.StateDir += "/none"
	h.install(t)
	if log := h.log.String(); !strings.Contains(log, "mount its /var/lib/calico") {
		t.Errorf("no warning:\n%s", log)
	}
	if err := Rollback(t.Context(), h.cfg.InstallHost, h.logger()); err == nil {
		t.Error("rolled back to nothing")
	}
}

// A file that cannot be copied is not replaced.
func TestAFullDiskKeepsTheNetworkThatIsThere(t *testing.T) {
	h := calicoHost(t)
	put(t, h.bin("calico"), plugin(strings.Repeat("Calico's", 100_000)))
	smallDisk(t, h.cfg.StateDir)
	found := read(t, h.bin("calico"))
	err := h.installer(fixedToken("secret")).Install(t.Context())
	if err == nil || !strings.Contains(err.Error(), h.bin("calico")) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v does not say what could not be kept", err)
	}
	if read(t, h.bin("calico")) != found || read(t, h.net("10-calico.conflist")) != calicosConflist {
		t.Error("Calico's files were replaced")
	}
}

func TestADamagedLedgerStopsTheInstallation(t *testing.T) {
	h := calicoHost(t)
	h.install(t)
	ledger := h.net(ledgerName)
	put(t, ledger, "{")
	err := h.installer(fixedToken("secret")).Install(t.Context())
	if err == nil || !strings.Contains(err.Error(), ledger) {
		t.Errorf("error %v does not name the ledger", err)
	}
}

// TestPlantedCopies: the agent's container can write to the host's /var/lib/calico and read the directory of
// configurations. Whatever it writes in place of copies, and of an earlier ledger, none of it gets into the host's
// plugins.
func TestPlantedCopies(t *testing.T) {
	const evil = "#!/bin/sh\n# evil"
	for name, c := range map[string]struct {
		plant func(t *testing.T, h *host, dir, copied string)
		fails bool // to restore
	}{
		"a ledger of its own": {func(t *testing.T, h *host, dir, _ string) {
			put(t, filepath.Join(dir, digest([]byte(evil))), evil)
			text, err := json.Marshal(map[string]*entry{h.bin("calico"): {Before: &before{Digest: digest([]byte(evil)), Mode: 0o755}}})
			errtest.Must(t, err)
			for _, file := range []string{"ledger.json", ledgerName} {
				put(t, filepath.Join(dir, file), string(text))
			}
		}, false},
		"another content": {func(t *testing.T, _ *host, _, copied string) { put(t, copied, evil) }, true},
		"a link": {func(t *testing.T, _ *host, dir, copied string) {
			put(t, filepath.Join(dir, "evil"), evil)
			errtest.Must(t, errors.Join(os.Remove(copied), os.Symlink(filepath.Join(dir, "evil"), copied)))
		}, true},
		"a pipe": {func(t *testing.T, _ *host, _, copied string) {
			errtest.Must(t, errors.Join(os.Remove(copied), syscall.Mkfifo(copied, 0o600)))
		}, true},
		"nothing": {func(t *testing.T, _ *host, dir, _ string) { errtest.Must(t, os.RemoveAll(dir)) }, true},
	} {
		for verb, leave := range map[string]func(context.Context, config.InstallHost, *slog.Logger) error{"uninstall": Uninstall,
			"rollback": Rollback} {
			t.Run(name+"/"+verb, func(t *testing.T) {
				h := calicoHost(t)
				had := read(t, h.bin("calico"))
				h.install(t)
				dir := filepath.Join(h.cfg.StateDir, copiesDir)
				c.plant(t, h, dir, filepath.Join(dir, digest([]byte(had))))
				err := leave(t.Context(), h.cfg.InstallHost, h.logger())
				if (err != nil) != c.fails {
					t.Errorf("error %v, want one: %v", err, c.fails)
				}
				if text, err := os.ReadFile(h.bin("calico")); err == nil && string(text) == evil {
					t.Error("the host's plugin is what the container has planted")
				}
				if !c.fails && read(t, h.bin("calico")) != had {
					t.Error("Calico's plugin is not back")
				}
			})
		}
	}
}
