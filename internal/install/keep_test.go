package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// run runs a resident installer until the test ends; it must end without an error.
func run(t *testing.T, i *Installer) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// await waits until a condition holds.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	waittest.Until(t, 30*time.Second, what, so)
}

// value returns the value of a metric's series with the label.
func value(t *testing.T, i *Installer, name string, label ...string) float64 {
	t.Helper()
	families, err := i.metrics.registry.Gather()
	errtest.Must(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && (len(label) == 0 || m.GetLabel()[0].GetValue() == label[0]) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("there is no metric %s %v", name, label)
	return 0
}

func there(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
}

// agent starts an agent with the readiness that the test sets in ready. asked counts the requests.
func agent(t *testing.T, h *host) (ready *atomic.Bool, asked *atomic.Int32) {
	t.Helper()
	ready, asked = &atomic.Bool{}, &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if !ready.Load() {
			http.Error(w, "no address yet", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	h.cfg.AgentReadyURL = server.URL + "/readyz"
	return ready, asked
}

func TestTheConflistWaitsForTheAgent(t *testing.T) {
	h := newHost(t)
	ready, asked := agent(t, h)
	i := h.installer(fixedToken("secret"))
	run(t, i)
	await(t, "the agent is asked", func() bool { return asked.Load() > 2 })
	if !there(h.net(KubeconfigName))() || there(h.net("10-calico.conflist"))() {
		t.Errorf("while the agent does not serve there is %v, want all but the conflist", h.files(t))
	}
	if got := value(t, i, "tortie_install_active"); got != 0 {
		t.Errorf("tortie_install_active is %v before the conflist is there", got)
	}
	ready.Store(true)
	await(t, "the conflist is there", there(h.net("10-calico.conflist")))
	await(t, "it is counted", func() bool { return value(t, i, "tortie_install_active") == 1 })
	if n := asked.Load(); n > 1000 {
		t.Errorf("the agent was asked %d times", n)
	}
}

// An upgrade's pod begins while the old conflist serves.
func TestAConflistThatIsThereStaysWhileTheAgentIsWaitedFor(t *testing.T) {
	h := calicoHost(t)
	ready, asked := agent(t, h)
	run(t, h.installer(fixedToken("secret")))
	await(t, "the agent is asked", func() bool { return asked.Load() > 2 })
	if got := read(t, h.net("10-calico.conflist")); got != calicosConflist {
		t.Errorf("the conflist was replaced before the agent served: %s", got)
	}
	ready.Store(true)
	await(t, "it is replaced", func() bool { return read(t, h.net("10-calico.conflist")) != calicosConflist })
}

func TestInstallOnceDoesNotWaitForever(t *testing.T) {
	h := newHost(t)
	agent(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := h.installer(fixedToken("secret")).Install(ctx)
	if err == nil || !strings.Contains(err.Error(), "TORTIE_AGENT_READY_URL") {
		t.Errorf("error %v does not name what it waited for", err)
	}
}

// A token that plugins report as refused is renewed at once, but not again and again.
func TestARefusedTokenIsRenewed(t *testing.T) {
	h := newHost(t)
	synctest.Test(t, func(t *testing.T) {
		var issued []time.Time
		i := h.installer(tokenFunc(func(context.Context) (Token, error) {
			issued = append(issued, time.Now())
			return Token{Value: fmt.Sprint("token", len(issued)), Expires: time.Now().Add(tokenLife)}, nil
		}))
		told := make(chan struct{}, 1)
		i.hooks.changes = func(_ context.Context, dir, _ string, _ *slog.Logger) <-chan struct{} {
			if dir == filepath.Dir(i.refusalFile()) {
				return told
			}
			return nil
		}
		run(t, i)
		refuse := func() {
			put(t, i.refusalFile(), "")
			told <- struct{}{}
			synctest.Wait()
		}
		waittest.Advance(time.Hour)
		told <- struct{}{} // another file of the directory
		synctest.Wait()
		if len(issued) != 1 {
			t.Errorf("%d tokens before one was refused", len(issued))
		}
		refuse()
		if len(issued) != 2 || there(i.refusalFile())() {
			t.Errorf("%d tokens after one was refused, want 2; the plugins' word is there yet: %v", len(issued), there(i.refusalFile())())
		}
		for range 100 { // plugins that still have the old one
			refuse()
			waittest.Advance(100 * time.Millisecond)
		}
		waittest.Advance(time.Minute)
		synctest.Wait()
		if len(issued) != 3 || issued[2].Sub(issued[1]) < refusalPause {
			t.Errorf("tokens at %v: want one more, %v after the last", issued, refusalPause)
		}
		if got := value(t, i, "tortie_install_token_refusals_total"); got < 2 {
			t.Errorf("tortie_install_token_refusals_total is %v", got)
		}
		if got := read(t, h.net(KubeconfigName)); !strings.Contains(got, "token3") {
			t.Errorf("the kubeconfig has not the last token:\n%s", got)
		}
	})
}

// An operator rolls back in the resident installer's own container.
func TestWhatWasPutBackStays(t *testing.T) {
	h := calicoHost(t)
	synctest.Test(t, func(t *testing.T) {
		i := h.unwatched(fixedToken("secret"))
		run(t, i)
		waittest.Advance(time.Hour)
		synctest.Wait()
		found := read(t, h.net(KubeconfigName))
		errtest.Must(t, Rollback(t.Context(), h.cfg.InstallHost, slog.New(slog.DiscardHandler)))
		waittest.Advance(5 * 24 * time.Hour)
		synctest.Wait()
		if got := read(t, h.net(KubeconfigName)); got != "Calico's kubeconfig" || found == got {
			t.Errorf("Calico's kubeconfig has become %q", got)
		}
		if n := value(t, i, "tortie_install_token_renewals_total", resultFailed); n != 1 {
			t.Errorf("%v tries to renew the token, want one", n)
		}
	})
}

// Touches the marker like the plugins.
func TestARefusalIsHeard(t *testing.T) {
	h := newHost(t)
	var issued atomic.Int32
	i := h.installer(tokenFunc(func(context.Context) (Token, error) {
		issued.Add(1)
		return Token{Value: "secret", Expires: time.Now().Add(tokenLife)}, nil
	}))
	run(t, i)
	await(t, "the directory is made", there(filepath.Dir(i.refusalFile())))
	await(t, "it is installed", there(h.net("10-calico.conflist")))
	await(t, "a plugin's word is heard", func() bool {
		put(t, i.refusalFile(), "")
		return value(t, i, "tortie_install_token_refusals_total") > 0
	})
}

func TestAFailedRenewalIsTold(t *testing.T) {
	h := newHost(t)
	synctest.Test(t, func(t *testing.T) {
		i, n := h.unwatched(nil), 0
		i.tokens = tokenFunc(func(context.Context) (Token, error) {
			if n++; n > 1 {
				return Token{}, errors.New("connection refused")
			}
			return Token{Value: "first", Expires: time.Now().Add(tokenLife)}, nil
		})
		run(t, i)
		waittest.Advance(13 * time.Hour)
		synctest.Wait()
		if failed := value(t, i, "tortie_install_token_renewals_total", resultFailed); failed < 10 {
			t.Errorf("%v renewals have failed", failed)
		}
		if value(t, i, "tortie_install_token_issued_timestamp_seconds") == 0 ||
			value(t, i, "tortie_install_token_expiry_timestamp_seconds") == 0 {
			t.Error("the token's age is not told")
		}
		if len(h.said()) == 0 || !strings.HasPrefix(h.said()[0], eventTokenNotRenewed) || !strings.Contains(h.said()[0], "connection refused") {
			t.Errorf("events: %q", h.said())
		}
	})
}

func TestANewAddressOfTheAPIServerReachesThePluginsAtOnce(t *testing.T) {
	h := newHost(t)
	h.cfg.EndpointDir = t.TempDir()
	run(t, h.installer(fixedToken("secret")))
	await(t, "it is installed", there(h.net("10-calico.conflist")))
	if got := read(t, h.net(KubeconfigName)); !strings.Contains(got, "https://10.96.0.1:443") {
		t.Errorf("the variable does not count without a file:\n%s", got)
	}
	await(t, "the new address is there", func() bool {
		put(t, filepath.Join(h.cfg.EndpointDir, "KUBERNETES_SERVICE_HOST"), "fd00::1\n")
		put(t, filepath.Join(h.cfg.EndpointDir, "KUBERNETES_SERVICE_PORT"), "6443")
		return strings.Contains(read(t, h.net(KubeconfigName)), "https://[fd00::1]:6443")
	})
	put(t, filepath.Join(h.cfg.EndpointDir, "KUBERNETES_SERVICE_PORT"), "https")
	if _, err := withEndpoint(h.cfg); err == nil || !strings.Contains(err.Error(), h.cfg.EndpointDir) {
		t.Errorf("error %v does not name the file", err)
	}
}

func TestCertificatesForEtcdAreFollowed(t *testing.T) {
	h := newHost(t)
	errtest.Must(t, os.Mkdir(h.cfg.TLSDir, 0o755))
	put(t, filepath.Join(h.cfg.TLSDir, etcdCA), "the first CA")
	h.cfg.Datastore, h.cfg.EtcdEndpoints = "etcdv3", "https://10.0.0.1:2379"
	h.cfg.NetworkConfig = `{"name":"k8s-pod-network","plugins":[{"type":"calico","etcd_endpoints":"__ETCD_ENDPOINTS__",
		"etcd_ca_cert_file":"__ETCD_CA_CERT_FILE__","etcd_key_file":"__ETCD_KEY_FILE__"}]}`
	run(t, h.installer(nil))
	await(t, "it is installed", there(h.net("10-calico.conflist")))
	want := `"etcd_endpoints":"https://10.0.0.1:2379",
		"etcd_ca_cert_file":"/etc/cni/net.d/calico-tls/etcd-ca","etcd_key_file":""`
	if got := read(t, h.net("10-calico.conflist")); !strings.Contains(got, want) {
		t.Errorf("conflist is %s", got)
	}
	if there(h.net(KubeconfigName))() {
		t.Error("there is a kubeconfig without an API server")
	}
	await(t, "new certificates are there", func() bool {
		put(t, filepath.Join(h.cfg.TLSDir, etcdCA), "the second CA")
		put(t, filepath.Join(h.cfg.TLSDir, etcdKey), "a key")
		text, err := os.ReadFile(h.net("calico-tls/etcd-key"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text) == "a key" && read(t, h.net("calico-tls/etcd-ca")) == "the second CA" &&
			strings.Contains(read(t, h.net("10-calico.conflist")), `calico-tls/etcd-key"`)
	})
	unlink(t, filepath.Join(h.cfg.TLSDir, etcdKey))
	await(t, "a certificate that is gone is removed", func() bool { return !there(h.net("calico-tls/etcd-key"))() })
}

func TestOtherNetworksThatComeFirst(t *testing.T) {
	h := newHost(t)
	for name, text := range map[string]string{
		"00-multus.conf": `{"type":"multus-shim"}`, "05-cilium.conflist": `{"plugins":[{"type":"cilium-cni"}]}`, "10-aws.conflist": "{}",
		"10-flannel.conflist": "{}", "01-notes.txt": "", "02-old.conflist.bak": "{}", "99-loopback.conf": `{"type":"loopback"}`,
	} {
		put(t, h.net(name), text)
	}
	errtest.Must(t, os.Mkdir(h.net("01-dir.conflist"), 0o755))
	foreign, meta, err := preferred(h.cfg.HostNetDir, h.cfg.ConfName)
	errtest.Must(t, err)
	difftest.Want(t, "", [][]string{{"05-cilium.conflist", "10-aws.conflist"}, {"00-multus.conf"}}, [][]string{foreign, meta})
	i := h.installer(fixedToken("secret"))
	run(t, i)
	await(t, "they are counted", func() bool { return value(t, i, "tortie_install_foreign_configurations") == 2 })
	unlink(t, h.net("10-aws.conflist"))
	await(t, "one that is gone is not", func() bool { return value(t, i, "tortie_install_foreign_configurations") == 1 })
	if !slices.ContainsFunc(h.said(), func(e string) bool {
		return strings.HasPrefix(e, eventForeign) && strings.Contains(e, "05-cilium.conflist, 10-aws.conflist")
	}) {
		t.Errorf("events: %q", h.said())
	}
}

func TestBinariesThatAreKept(t *testing.T) {
	h := calicoHost(t)
	h.cfg.SkipBinaries = []string{"bandwidth", "calico"} // calico cannot be left out
	h.cfg.UpdateBinaries = false
	h.install(t)
	if got := read(t, h.bin("calico")); got != plugin("Calico's calico") {
		t.Errorf("calico was updated: %q", got)
	}
	if there(h.bin("bandwidth"))() {
		t.Error("bandwidth was installed")
	}
	h.cfg.UpdateBinaries = true
	h.install(t)
	if got := read(t, h.bin("calico")); got != plugin("calico") || there(h.bin("bandwidth"))() {
		t.Errorf("calico is %q, bandwidth is there: %v", got, there(h.bin("bandwidth"))())
	}
	readOnly(t, h.cfg.HostBinDirs[0])
	h.cfg.UpdateBinaries = false
	h.cfg.ConfMode = 0o640
	if err := h.installer(fixedToken("secret")).Install(t.Context()); err != nil {
		t.Errorf("a read-only directory that has all is not enough: %v", err)
	}
	if info, err := os.Stat(h.net("10-calico.conflist")); err != nil || info.Mode() != 0o640 {
		t.Errorf("conflist: %v, %v", info, err)
	}
}

// Keys of the conflist that calico does not act on are named; the built-in template has none.
func TestKeysWithoutEffect(t *testing.T) {
	h := newHost(t)
	h.install(t)
	if slices.ContainsFunc(h.said(), func(e string) bool { return strings.HasPrefix(e, eventUnread) }) {
		t.Errorf("of the built-in template: %q", h.said())
	}
	h.cfg.NetworkConfig = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"calico","mtuu":1400,"windows_use_single_network":true,` +
		`"ipam":{"type":"calico-ipam"}}]}`
	h.install(t)
	if !slices.ContainsFunc(h.said(), func(e string) bool {
		return strings.HasPrefix(e, eventUnread) && strings.Contains(e, "mtuu, windows_use_single_network (it is for Windows)")
	}) {
		t.Errorf("events: %q", h.said())
	}
}

// settled returns a resident installer, and its host, after the conflist was written.
func settled(t *testing.T) (*host, *Installer, string) {
	t.Helper()
	h := newHost(t)
	put(t, h.net("99-loopback.conf"), `{"type":"loopback"}`) // was there before
	i := h.installer(fixedToken("secret"))
	run(t, i)
	await(t, "the conflist is counted", func() bool { return value(t, i, "tortie_install_active") == 1 })
	return h, i, read(t, h.net("10-calico.conflist"))
}

func (h *host) hasSaid(texts ...string) bool {
	return slices.ContainsFunc(h.said(), func(e string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e, text) })
	})
}

// Another program's change of the conflist is undone at once, as otherwise no new pod could start on this node.
func TestTheConflistIsRestored(t *testing.T) {
	h, _, want := settled(t)
	path := h.net("10-calico.conflist")
	back := func() bool { text, err := os.ReadFile(path); return err == nil && string(text) == want }
	unlink(t, path)
	await(t, "a removed conflist is back", back)
	await(t, "it is told", func() bool {
		return h.hasSaid(eventRestored, "10-calico.conflist in /etc/cni/net.d was removed", "put back (1 times")
	})
	put(t, path, `{"name":"k8s-pod-network","plugins":[{"type":"bridge"}]}`)
	await(t, "a changed conflist is back", back)
	await(t, "it is told", func() bool { return h.hasSaid(eventRestored, "was changed", "put back (2 times") })
	put(t, path, "{")
	await(t, "a damaged conflist is back", back)
}

// Without its plugins a node starts no pods.
func TestPluginsAreRestored(t *testing.T) {
	h, _, _ := settled(t)
	for n, c := range []struct{ name, was string }{{"calico", "removed"}, {"calico-ipam", "removed"},
		{"calico-ipam", "changed"}, {"calico", "changed"}} {
		path := h.bin(c.name)
		want := read(t, path)
		if c.was == "removed" {
			unlink(t, path)
		} else {
			put(t, path, "damaged")
		}
		await(t, c.name+" is back", func() bool { text, err := os.ReadFile(path); return err == nil && string(text) == want })
		await(t, "it is told", func() bool {
			return h.hasSaid(eventPluginRestored, c.name+" in ", "was "+c.was, fmt.Sprintf("put back (%d times", n+1))
		})
	}
	errtest.Must(t, os.Chmod(h.bin("calico"), 0))
	await(t, "it can be executed again", func() bool { info, err := os.Stat(h.bin("calico")); return err == nil && info.Mode() == 0o755 })
	if h.hasSaid(eventRestored) {
		t.Errorf("the conflist is as it was: %q", h.said())
	}
}

// During an upgrade the older installer leaves the newer one's plugins alone, and does not put its own back.
func TestPluginsOfANewerInstallerStay(t *testing.T) {
	h, _, _ := settled(t)
	newer := &host{cfg: h.cfg}
	newer.cfg.SourceDir = t.TempDir()
	for _, name := range required {
		put(t, filepath.Join(newer.cfg.SourceDir, name), plugin("newer "+name))
	}
	_, err := newer.installer(fixedToken("secret")).prepare(t.Context())
	errtest.Must(t, err)
	unlink(t, h.bin("calico-ipam"))
	unlink(t, h.net("10-calico.conflist"))
	await(t, "the older installer has looked", there(h.net("10-calico.conflist")))
	if there(h.bin("calico-ipam"))() || read(t, h.bin("calico")) != plugin("newer calico") || h.hasSaid(eventPluginRestored) {
		t.Errorf("the older installer has written plugins: %q", h.said())
	}
	_, err = h.installer(fixedToken("secret")).prepare(t.Context()) // a downgrade
	errtest.Must(t, err)
	unlink(t, h.bin("calico"))
	await(t, "what was installed last is put back", func() bool {
		text, err := os.ReadFile(h.bin("calico"))
		return err == nil && string(text) == plugin("calico")
	})
}

// A service mesh chains its plugin behind the network's: both would write for ever.
func TestAChainedPluginStays(t *testing.T) {
	h, _, want := settled(t)
	path := h.net("10-calico.conflist")
	chained := strings.Replace(want, `"plugins": [`, `"plugins": [{"type": "first"},`, 1)
	chained = chained[:strings.LastIndex(chained, "]")] + `, {"type": "istio-cni", "kubernetes": {"a": 1}}]}`
	if chained == want || !extends([]byte(chained), []byte(want)) {
		t.Fatalf("the test's own conflist is wrong: %s", chained)
	}
	put(t, path, chained)
	marker := h.net("05-marker.conf") // once this later change was seen, the earlier one was, too
	put(t, marker, `{"type":"a"}`)
	await(t, "a later change was seen", func() bool { return h.hasSaid(eventForeign, "05-marker.conf") })
	if got := read(t, path); got != chained {
		t.Errorf("the chained plugin is gone: %s", got)
	}
}

// An operator changes to another network.
func TestAnotherNetworkIsAChoice(t *testing.T) {
	h, _, _ := settled(t)
	path := h.net("10-calico.conflist")
	put(t, h.net("20-other.conflist"), `{"name":"other","plugins":[{"type":"bridge"}]}`)
	unlink(t, path)
	await(t, "it is told", func() bool { return h.hasSaid(eventRestored, "left so: 20-other.conflist has come") })
	if there(path)() {
		t.Error("the conflist is put back beside the operator's choice")
	}
	unlink(t, h.net("20-other.conflist"))
	await(t, "without that network the conflist is back", there(path))
}

// Calico's installer replaces the plugins, the kubeconfig and the conflist, by the same names.
func TestCalicosInstallationIsAChoice(t *testing.T) {
	h, _, _ := settled(t)
	put(t, h.bin("calico"), plugin("Calico's calico"))
	await(t, "it is told", func() bool {
		return h.hasSaid(eventPluginRestored, "calico in", "was changed, and is left so: the plugin calico")
	})
	put(t, h.net(KubeconfigName), "Calico's kubeconfig")
	await(t, "it is told", func() bool { return h.hasSaid(eventRestored, "calico-kubeconfig", "left so: the plugin calico") })
	put(t, h.net("10-calico.conflist"), calicosConflist)
	await(t, "it is told", func() bool {
		return h.hasSaid(eventRestored, "10-calico.conflist in /etc/cni/net.d was changed, and is left so: the plugin calico")
	})
	if got := read(t, h.bin("calico")); got != plugin("Calico's calico") {
		t.Errorf("Calico's plugin is replaced by %s", got)
	}
	if conflist, kubeconfig := read(t, h.net("10-calico.conflist")), read(t, h.net(KubeconfigName)); conflist != calicosConflist ||
		kubeconfig != "Calico's kubeconfig" {
		t.Errorf("Calico's files are replaced by %s and %s", conflist, kubeconfig)
	}
}

// Calico's plugin appears while this installer compares its files.
func TestCalicosPluginComesDuringALook(t *testing.T) {
	h := newHost(t)
	i := h.installer(fixedToken("secret"))
	errtest.Must(t, i.Install(t.Context()))
	errtest.Must(t, i.locked(t.Context(), func(l *ledger) error {
		put(t, h.bin("calico"), plugin("Calico's calico"))
		lost, others, err := i.losses(l, newRestorer(eventPluginRestored))
		if lost.plugin != "changed" || !others {
			t.Errorf("the plugin is %q, another network's: %t", lost.plugin, others)
		}
		return err
	}))
}

// A directory of plugins that this installer does not write may have had another network's before.
func TestAnotherNetworksPluginsMayStay(t *testing.T) {
	h := calicoHost(t)
	h.cfg.UpdateBinaries = false
	run(t, h.installer(fixedToken("secret")))
	path := h.net("10-calico.conflist")
	await(t, "it is installed", func() bool { return read(t, path) != calicosConflist })
	unlink(t, path)
	await(t, "the conflist is back", there(path))
}

// Multus derives its own configuration from the network's once that exists.
func TestMultusIsNoOtherNetwork(t *testing.T) {
	h, _, _ := settled(t)
	path := h.net("10-calico.conflist")
	put(t, h.net("00-multus.conf"), `{"name":"multus-cni-network","type":"multus-shim"}`)
	unlink(t, path)
	await(t, "the conflist is back", there(path))
}

// The conflist of a network without its kubeconfig would fail every ADD.
func TestTheKubeconfigIsRestored(t *testing.T) {
	h, _, _ := settled(t)
	path, kubeconfig := h.net("10-calico.conflist"), h.net(KubeconfigName)
	unlink(t, kubeconfig)
	await(t, "the kubeconfig is back", there(kubeconfig))
	await(t, "it is told", func() bool {
		return h.hasSaid(eventRestored, "calico-kubeconfig in /etc/cni/net.d was removed", "put back (1 times")
	})
	unlink(t, kubeconfig)
	unlink(t, path)
	await(t, "the conflist is back", there(path))
	if !there(kubeconfig)() {
		t.Error("the conflist is back without its kubeconfig")
	}
}

// While the API server issues no working token, the conflist stays removed.
func TestNoConflistWithoutAKubeconfig(t *testing.T) {
	h := newHost(t)
	synctest.Test(t, func(t *testing.T) {
		i := h.installer(nil)
		var asked atomic.Int32
		var fails atomic.Bool
		i.tokens = tokenFunc(func(context.Context) (Token, error) {
			return Token{Value: fmt.Sprint("token", asked.Add(1)), Expires: time.Now().Add(tokenLife)}, nil
		})
		i.hooks.prove = func(context.Context, string) error {
			if fails.Load() {
				return errors.New("connection refused")
			}
			return nil
		}
		changed := make(chan struct{}, 1)
		i.hooks.changes = func(_ context.Context, dir, _ string, _ *slog.Logger) <-chan struct{} {
			if dir == h.cfg.HostNetDir {
				return changed
			}
			return nil
		}
		run(t, i)
		synctest.Wait()
		path := h.net("10-calico.conflist")
		fails.Store(true)
		unlink(t, path)
		unlink(t, h.net(KubeconfigName))
		for range 100 { // the kubeconfig that is tried is a change, too
			changed <- struct{}{}
			synctest.Wait()
		}
		if there(path)() || asked.Load() != 2 ||
			!h.hasSaid(eventRestored, "10-calico.conflist", "not back yet: putting the kubeconfig back: connection refused") {
			t.Errorf("the conflist is there: %v, after %d tokens; %q", there(path)(), asked.Load(), h.said())
		}
		waittest.Advance(restores * 2 * refusalPause)
		synctest.Wait()
		if there(path)() || asked.Load() < restores {
			t.Errorf("the conflist is there: %v, after %d tokens", there(path)(), asked.Load())
		}
		fails.Store(false)
		waittest.Advance(refusalPause)
		synctest.Wait()
		if !there(path)() || !there(h.net(KubeconfigName))() || !h.hasSaid(eventRestored, "put back (1 times") {
			t.Errorf("files %v, said %q", h.files(t), h.said())
		}
	})
}

// The installer does not fight a program that removes the conflist again and again.
func TestRestoresAreBounded(t *testing.T) {
	h, _, _ := settled(t)
	path := h.net("10-calico.conflist")
	for range restores {
		unlink(t, path)
		await(t, "the conflist is back", there(path))
	}
	unlink(t, path)
	await(t, "it is told", func() bool { return h.hasSaid(eventRestored, "left so: it was put back 5 times") })
	if there(path)() {
		t.Error("the conflist is put back without end")
	}
}

// An uninstallation removes what this installer wrote.
func TestAnUninstallationIsNotUndone(t *testing.T) {
	h, i, _ := settled(t)
	errtest.Must(t, Uninstall(t.Context(), h.cfg.InstallHost, slog.New(slog.DiscardHandler)))
	put(t, h.net("05-marker.conf"), `{"type":"a"}`)
	await(t, "a later change was seen", func() bool { return h.hasSaid(eventForeign, "05-marker.conf") })
	await(t, "the other network is counted", func() bool { return value(t, i, "tortie_install_foreign_configurations") == 1 })
	if there(h.net("10-calico.conflist"))() || h.hasSaid(eventRestored) {
		t.Errorf("after an uninstallation the conflist is back, or missed: %q", h.said())
	}
}
