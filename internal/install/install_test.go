package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// host holds a node's directories, as mounted in an installer's container, and the container's own.
type host struct {
	cfg config.Install
	log bytes.Buffer

	mu     sync.Mutex // guards the rest
	events []string
}

// said returns the Events so far.
func (h *host) said() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := hostBelow(t.TempDir())
	for _, dir := range []string{h.cfg.HostNetDir, h.cfg.HostBinDirs[0], h.cfg.SourceDir, h.cfg.AccountDir, h.cfg.StateDir, h.cfg.RunDir} {
		errtest.Must(t, os.Mkdir(dir, 0o755))
	}
	for _, name := range []string{"calico", "calico-ipam", "portmap", "bandwidth", "loopback"} {
		put(t, filepath.Join(h.cfg.SourceDir, name), plugin(name))
	}
	put(t, filepath.Join(h.cfg.AccountDir, "ca.crt"), "a certificate")
	return h
}

// hostBelow names the directories of a host; it makes none.
func hostBelow(root string) *host {
	return &host{cfg: config.Install{
		InstallHost: config.InstallHost{
			NetDir: "/etc/cni/net.d", HostNetDir: filepath.Join(root, "net.d"), HostBinDirs: []string{filepath.Join(root, "bin")},
			ConfName: "10-calico.conflist", OldConfName: "10-calico.conflist", StateDir: filepath.Join(root, "lib"),
			RunDir: filepath.Join(root, "run"), LogFile: "/var/log/calico/cni/cni.log",
		},
		SourceDir: filepath.Join(root, "image"), UpdateBinaries: true, ConfMode: 0o600, NodeName: "node1",
		ServiceHost: "10.96.0.1", ServicePort: 443, Protocol: "https", Datastore: "kubernetes", LogLevel: "info",
		AccountDir: filepath.Join(root, "account"), TLSDir: filepath.Join(root, "secrets"),
	}}
}

// installer returns an installer for a host without an API server: it assumes that the token works.
func (h *host) installer(tokens TokenSource) *Installer {
	tell := func(reason, text string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.events = append(h.events, reason+": "+text)
	}
	i := New(h.cfg, Options{Tokens: tokens, Log: slog.New(slog.NewTextHandler(&h.log, nil)), Metrics: NewMetrics(), Warn: tell, Past: tell})
	i.hooks.prove = func(context.Context, string) error { return nil }
	return i
}

// unwatched returns an installer for a bubble of synctest, in which a real file watch, a process or a wait for one
// would stop the fake clock.
func (h *host) unwatched(tokens TokenSource) *Installer {
	i := h.installer(tokens)
	i.hooks.changes = func(context.Context, string, string, *slog.Logger) <-chan struct{} { return nil }
	return i
}

// plugin is the text of a program that answers as a CNI plugin.
func plugin(name string) string {
	return "#!/bin/sh\necho '{\"supportedVersions\":[\"1.0.0\"]}' # " + name + "\n"
}

func (h *host) bin(name string) string { return filepath.Join(h.cfg.HostBinDirs[0], name) }
func (h *host) net(name string) string { return filepath.Join(h.cfg.HostNetDir, name) }

// files lists everything below the host's two directories with its mode.
func (h *host) files(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{h.cfg.HostBinDirs[0], h.cfg.HostNetDir} {
		entries, err := os.ReadDir(dir)
		errtest.Must(t, err)
		for _, e := range entries {
			info, err := e.Info()
			errtest.Must(t, err)
			all = append(all, fmt.Sprintf("%s %s/%s", info.Mode(), filepath.Base(dir), e.Name()))
		}
	}
	return all
}

// put writes a file, or replaces it by one of the same mode, as an installer does: watchers of the directory find no
// partial file.
func put(t *testing.T, path, text string) {
	t.Helper()
	mode, part := os.FileMode(0o644), filepath.Join(filepath.Dir(path), ".part")
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	errtest.Must(t, os.WriteFile(part, []byte(text), 0o600))
	errtest.Must(t, os.Chmod(part, mode))
	errtest.Must(t, os.Rename(part, path))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	errtest.Must(t, err)
	return string(text)
}

// tokenFunc is a TokenSource made of a function.
type tokenFunc func(context.Context) (Token, error)

func (f tokenFunc) Token(ctx context.Context) (Token, error) { return f(ctx) }

func fixedToken(value string) TokenSource {
	return tokenFunc(func(context.Context) (Token, error) {
		return Token{Value: value, Expires: time.Now().Add(tokenLife)}, nil
	})
}

var wholeHost = []string{
	"-rwxr-xr-x bin/bandwidth",
	"-rwxr-xr-x bin/calico",
	"-rwxr-xr-x bin/calico-ipam",
	"-rwxr-xr-x bin/loopback",
	"-rwxr-xr-x bin/portmap",
	"-rw------- net.d/.tortie-ledger",
	"-rw------- net.d/10-calico.conflist",
	"-rw------- net.d/calico-kubeconfig",
}

func TestInstallWritesEverything(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077)) // a strict umask must not cut the modes
	h := newHost(t)
	errtest.Must(t, h.installer(fixedToken("secret")).Install(t.Context()))
	difftest.Want(t, "files on the host", wholeHost, h.files(t))
	if got := read(t, h.bin("calico")); got != plugin("calico") {
		t.Errorf("calico is %q", got)
	}
	kc, err := kubernetes.LoadKubeconfig(h.net(KubeconfigName)) // as the plugins do
	if err != nil || kc.Token != "secret" || kc.Server != "https://10.96.0.1:443" || len(kc.CAData) == 0 {
		t.Errorf("kubeconfig is %+v, %v", kc, err)
	}
}

func TestConflistIsCalicos(t *testing.T) {
	h := newHost(t)
	h.cfg.NodeName = `no"de` // no node has such a name; the file must stay JSON anyway
	h.cfg.MTU = 1440
	errtest.Must(t, h.installer(fixedToken("secret")).Install(t.Context()))
	var got, want any
	errtest.Must(t, json.Unmarshal([]byte(read(t, h.net("10-calico.conflist"))), &got))
	errtest.Must(t, json.Unmarshal([]byte(`{"name": "k8s-pod-network", "cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"], "plugins": [
		{"type": "calico", "log_level": "info", "log_file_path": "/var/log/calico/cni/cni.log",
		 "datastore_type": "kubernetes", "nodename": "no\"de", "mtu": 1440, "ipam": {"type": "calico-ipam"},
		 "policy": {"type": "k8s"}, "policy_enforced": false, "policy_setup_timeout_seconds": 0,
		 	"kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"}},
		{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
		{"type": "bandwidth", "capabilities": {"bandwidth": true}}]}`), &want))
	difftest.Want(t, "conflist", want, got)
}

func TestNothingIsWrittenWithABadTemplate(t *testing.T) {
	h := newHost(t)
	h.cfg.NetworkConfig = "{"
	if err := h.installer(fixedToken("secret")).Install(t.Context()); err == nil {
		t.Fatal("installed a broken conflist")
	}
	if got := h.files(t); len(got) != 0 {
		t.Errorf("files on the host: %v", got)
	}
}

func TestInstallAgainKeepsWhatIsRight(t *testing.T) {
	h := newHost(t)
	in := h.installer(fixedToken("secret"))
	errtest.Must(t, in.Install(t.Context()))
	before := inodes(t, h)
	errtest.Must(t, in.Install(t.Context()))
	if diff := cmp.Diff(before, inodes(t, h)); diff != "" {
		t.Errorf("inodes changed (-before +after):\n%s", diff)
	}
	put(t, filepath.Join(h.cfg.SourceDir, "portmap"), plugin("a newer portmap"))
	errtest.Must(t, os.Chmod(h.bin("bandwidth"), 0o700))
	errtest.Must(t, in.Install(t.Context()))
	after := inodes(t, h)
	for path, inode := range before {
		name := filepath.Base(path)
		if changed := after[path] != inode; changed != (name == "portmap" || name == "bandwidth" || name == ledgerName) {
			t.Errorf("%s: changed is %v", name, changed)
		}
	}
	difftest.Want(t, "files on the host", wholeHost, h.files(t))
}

func inodes(t *testing.T, h *host) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	for _, dir := range []string{h.cfg.HostBinDirs[0], h.cfg.HostNetDir} {
		entries, err := os.ReadDir(dir)
		errtest.Must(t, err)
		for _, e := range entries {
			info, err := e.Info()
			errtest.Must(t, err)
			all[filepath.Join(dir, e.Name())] = info.Sys().(*syscall.Stat_t).Ino
		}
	}
	return all
}

// A runtime reads at any time. Two versions alternate, each of many pages; a looping reader must always find one of
// them whole.
func TestReadersNeverSeeHalfAFile(t *testing.T) {
	h := newHost(t)
	errtest.Must(t, h.installer(fixedToken("secret")).Install(t.Context()))
	versions := map[string]bool{}
	template := strings.Replace(defaultConflist, `"cniVersion"`, `"padding": "%s", "cniVersion"`, 1)
	stop := make(chan struct{})
	writer := make(chan error, 1)
	install := func(n int) error { // without the plugins, which are executed each time
		h.cfg.NetworkConfig = fmt.Sprintf(template, strings.Repeat(string(rune('a'+n%2)), 64<<10))
		return h.installer(fixedToken("secret")).activate(context.Background())
	}
	errtest.Must(t, install(0))
	installs := tier.Size(300, 1000)
	if testing.Short() {
		installs = 50
	}
	go func() {
		defer close(stop)
		for n := range installs {
			if err := install(n); err != nil {
				writer <- err
				return
			}
		}
		writer <- nil
	}()
	reads := 0
	for done := false; !done; reads++ {
		select {
		case <-stop:
			done = true
		default:
		}
		text := read(t, h.net("10-calico.conflist"))
		if !json.Valid([]byte(text)) {
			t.Fatalf("read %d: %d bytes that are not JSON", reads, len(text))
		}
		versions[text] = true
	}
	errtest.Must(t, <-writer)
	if len(versions) != 2 {
		t.Errorf("%d reads saw %d versions, want both and nothing else", reads, len(versions))
	}
}

// A binary that the kernel runs can not be written to (ETXTBSY); it can be replaced.
func TestRunningBinaryIsReplaced(t *testing.T) {
	h := newHost(t)
	self, err := os.ReadFile("/proc/self/exe")
	errtest.Must(t, err)
	errtest.Must(t, os.WriteFile(h.bin("calico"), self, 0o755))
	old, err := os.StartProcess(h.bin("calico"), []string{"calico", "-test.run=^TestHelperSleeps$"},
		&os.ProcAttr{Env: []string{helperSleeps + "=1"}})
	errtest.Must(t, err)
	defer func() {
		if _, err := old.Wait(); err != nil {
			t.Error(err)
		}
	}()
	defer old.Kill()
	if f, err := os.OpenFile(h.bin("calico"), os.O_WRONLY, 0); !errors.Is(err, syscall.ETXTBSY) {
		f.Close()
		t.Fatalf("opening a running binary: %v, want ETXTBSY: the test tests nothing", err)
	}
	errtest.Must(t, h.installer(fixedToken("secret")).Install(t.Context()))
	if got := read(t, h.bin("calico")); got != plugin("calico") {
		t.Errorf("calico has %d bytes, not the new content", len(got))
	}
}

// TestHelperSleeps is the running program of TestRunningBinaryIsReplaced; alone it does nothing.
func TestHelperSleeps(_ *testing.T) {
	if _, ok := os.LookupEnv(helperSleeps); ok {
		for { // until it is killed; an empty select can be a deadlock, which ends a process
			_ = unix.Pause()
		}
	}
}

func TestFailuresSayWhatToDo(t *testing.T) {
	cases := []struct {
		name  string
		spoil func(t *testing.T, h *host)
		want  []string
	}{
		{"read-only directory of binaries", func(t *testing.T, h *host) { readOnly(t, h.cfg.HostBinDirs[0]) },
			[]string{"bin/bandwidth", "read-only file system", "read-write"}},
		{"read-only directory of configuration", func(t *testing.T, h *host) { readOnly(t, h.cfg.HostNetDir) },
			[]string{"net.d/.tortie-ledger", "read-only file system", "read-write"}},
		{"full file system", func(t *testing.T, h *host) {
			put(t, filepath.Join(h.cfg.SourceDir, "calico"), strings.Repeat("x", 1<<20))
			smallDisk(t, h.cfg.HostBinDirs[0])
		}, []string{"bin/calico", "no space left", "free space"}},
		{"directory of somebody else", func(t *testing.T, h *host) {
			needtest.Root(t, "a directory of another user")
			errtest.Must(t, os.Chown(h.cfg.HostBinDirs[0], 1001, 1001))
			dropOverride(t)
		}, []string{"permission denied", "1001", "0755", "DAC_OVERRIDE"}},
		{"directory without write access", func(t *testing.T, h *host) {
			errtest.Must(t, os.Chmod(h.cfg.HostNetDir, 0o500))
			dropOverride(t)
		}, []string{"net.d/.tortie-ledger", "permission denied", "0500", "chmod"}},
		{"directory with a label that forbids", func(t *testing.T, h *host) {
			labelled(t, h.cfg.HostBinDirs[0], "system_u:object_r:bin_t:s0")
			immutable(t, h.cfg.HostBinDirs[0])
		}, []string{"operation not permitted", "lsattr", "SELinux", "system_u:object_r:bin_t:s0", "seLinuxOptions", "chcon"}},
		{"full file system of configuration", func(t *testing.T, h *host) {
			h.cfg.NetworkConfig = strings.Replace(defaultConflist, `"cniVersion"`, `"padding": "`+strings.Repeat("x", 1<<20)+`", "cniVersion"`, 1)
			smallDisk(t, h.cfg.HostNetDir)
		}, []string{"net.d/10-calico.conflist", "no space left", "free space"}},
		{"plugin of another processor", func(t *testing.T, h *host) { put(t, filepath.Join(h.cfg.SourceDir, "calico"), "\x7fELF not here") },
			[]string{"bin/calico", "exec format error", "architecture"}},
		{"plugin that fails", func(t *testing.T, h *host) {
			put(t, filepath.Join(h.cfg.SourceDir, "portmap"), "#!/bin/sh\necho no iptables >&2; exit 3\n")
		}, []string{"bin/portmap", "exit status 3", "no iptables"}},
		{"program that is no plugin", func(t *testing.T, h *host) {
			put(t, filepath.Join(h.cfg.SourceDir, "calico"), "#!/bin/sh\necho hello\n")
		}, []string{"bin/calico", "hello"}},
		{"directory in the way", func(t *testing.T, h *host) {
			errtest.Must(t, os.MkdirAll(h.bin("calico"), 0o755))
		}, []string{"bin/calico", "drwxr-xr-x"}},
		{"template file that is not mounted", func(_ *testing.T, h *host) { h.cfg.NetworkFile = "/none/template" },
			[]string{"CNI_NETWORK_CONFIG_FILE", "/none/template", "mounted"}},
		{"conflist under another extension", func(_ *testing.T, h *host) { h.cfg.ConfName = "10-calico.conf" },
			[]string{`has "plugins"`, "CNI_CONF_NAME", ".conflist"}},
		{"directory not mounted", func(_ *testing.T, h *host) { h.cfg.HostNetDir += "/missing" },
			[]string{"net.d/missing", "mount"}},
		{"image without plugin", func(t *testing.T, h *host) { unlink(t, filepath.Join(h.cfg.SourceDir, "calico-ipam")) },
			[]string{"calico-ipam", "CNI_BIN_SOURCE_DIR"}},
		{"no service account", func(t *testing.T, h *host) { unlink(t, filepath.Join(h.cfg.AccountDir, "ca.crt")) },
			[]string{"ca.crt", "automountServiceAccountToken"}},
		{"unknown placeholder", func(_ *testing.T, h *host) {
			h.cfg.NetworkConfig = `{"name":"x","etcd":"__ETCD_PASSWORD__","plugins":[{"type":"calico"}]}`
		}, []string{"CNI_NETWORK_CONFIG", "__ETCD_PASSWORD__", "__CNI_MTU__"}},
		{"template that is not JSON", func(_ *testing.T, h *host) {
			h.cfg.NetworkConfig = "{\n\"name\": \"x\",\n\"mtu\": __CNI_MTU__,\n}"
		}, []string{"CNI_NETWORK_CONFIG", "line 4"}},
		{"template without plugins", func(_ *testing.T, h *host) { h.cfg.NetworkConfig = `{"name":"x","plugins":[]}` },
			[]string{`"plugins"`}},
		{"plugin without type", func(_ *testing.T, h *host) { h.cfg.NetworkConfig = `{"name":"x","plugins":[{}]}` },
			[]string{`plugin 1`, `"type"`}},
		{"template of another shape", func(_ *testing.T, h *host) { h.cfg.NetworkConfig = `[]` },
			[]string{"conflist"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			c.spoil(t, h)
			err := h.installer(fixedToken("secret")).Install(t.Context())
			if err == nil {
				t.Fatal("installed")
			}
			difftest.Contains(t, err.Error(), c.want...)
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines:\n%v", err)
			}
			if _, err := os.Stat(h.net("10-calico.conflist")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a failed install left a conflist (%v)", err)
			}
		})
	}
}

func unlink(t *testing.T, path string) {
	t.Helper()
	errtest.Must(t, os.Remove(path))
}

func TestLeftoversOfAKilledRunAreRemoved(t *testing.T) {
	h := newHost(t)
	put(t, h.bin(".tortie-123.tmp"), "half a bin")
	put(t, h.net(".tortie-456.tmp"), "half a conf")
	put(t, h.net("99-other.conflist"), "somebody else's")
	errtest.Must(t, h.installer(fixedToken("secret")).Install(t.Context()))
	want := append(append([]string{}, wholeHost[:7]...), "-rw-r--r-- net.d/99-other.conflist", wholeHost[7])
	difftest.Want(t, "files on the host", want, h.files(t))
}

func TestInstallersTakeTurns(t *testing.T) {
	h := newHost(t)
	var inside, most atomic.Int32
	done := make(chan error)
	const installers = 4
	for range installers {
		i := New(h.cfg, Options{Tokens: fixedToken("secret"), Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics()})
		i.hooks.prove = func(context.Context, string) error { return nil }
		i.hooks.replace = func(path string, content []byte, mode fs.FileMode) (bool, error) {
			most.Store(max(most.Load(), inside.Add(1)))
			defer inside.Add(-1)
			<-time.After(10 * time.Millisecond) // long enough for another installer to interfere, if it could
			return hostfile.Replace(path, content, mode)
		}
		go func() { done <- i.Install(t.Context()) }()
	}
	for range installers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d installers wrote at the same time", most.Load())
	}
}

func TestWaitingForTheLockEnds(t *testing.T) {
	h := newHost(t)
	unlock, err := hostfile.Lock(t.Context(), h.cfg.HostNetDir)
	errtest.Must(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err = h.installer(fixedToken("secret")).Install(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), h.cfg.HostNetDir) {
		t.Errorf("error %v does not say who is in the way", err)
	}
}

// People read and change the chart's copy; it must equal the default template.
func TestChartHasTheBuiltInTemplate(t *testing.T) {
	if got := read(t, "../../charts/tortie/files/conflist.json"); got != defaultConflist {
		t.Error("charts/tortie/files/conflist.json differs from internal/install/conflist.json: run `make generate`")
	}
}
