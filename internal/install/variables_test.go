package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Each documented placeholder is replaced by its variable's value.
func TestEveryPlaceholder(t *testing.T) {
	h := newHost(t)
	h.cfg.LogMaxSize, h.cfg.LogMaxAge, h.cfg.LogMaxCount, h.cfg.MTU, h.cfg.RequireMTUFile = 1, 2, 3, 1400, true
	h.cfg.Policy, h.cfg.PolicyTimeout = config.PolicyAuto, 7
	h.cfg.APIGroup, h.cfg.EtcdEndpoints, h.cfg.EtcdDiscovery = "crd.projectcalico.org/v1", "https://10.0.0.1:2379", "example.org"
	errtest.Must(t, os.Mkdir(h.cfg.TLSDir, 0o755))
	for _, name := range []string{etcdCA, etcdCert} {
		put(t, filepath.Join(h.cfg.TLSDir, name), "a certificate")
	}
	put(t, filepath.Join(h.cfg.AccountDir, "token"), "own\n")
	want := map[string]string{
		"__LOG_LEVEL__": "info", "__LOG_FILE_PATH__": "/var/log/calico/cni/cni.log",
		"__LOG_FILE_MAX_SIZE__": "1", "__LOG_FILE_MAX_AGE__": "2", "__LOG_FILE_MAX_COUNT__": "3",
		"__POLICY_ENFORCED__": "true", "__POLICY_SETUP_TIMEOUT__": "7",
		"__DATASTORE_TYPE__": "kubernetes", "__CALICO_API_GROUP__": "crd.projectcalico.org/v1", "__KUBERNETES_NODE_NAME__": "node1",
		"__KUBECONFIG_FILEPATH__": "/etc/cni/net.d/calico-kubeconfig", "__CNI_MTU__": "1400", "__REQUIRE_MTU_FILE__": "true",
		"__KUBERNETES_SERVICE_HOST__": "10.96.0.1", "__KUBERNETES_SERVICE_PORT__": "443", "__SERVICEACCOUNT_TOKEN__": "own",
		"__ETCD_ENDPOINTS__": "https://10.0.0.1:2379", "__ETCD_DISCOVERY_SRV__": "example.org",
		"__ETCD_CA_CERT_FILE__": "/etc/cni/net.d/calico-tls/etcd-ca", "__ETCD_CERT_FILE__": "/etc/cni/net.d/calico-tls/etcd-cert",
		"__ETCD_KEY_FILE__": "", // there is none
	}
	got := map[string]string{}
	for _, p := range Placeholders() {
		h.cfg.NetworkConfig = fmt.Sprintf(`{"name":"x","plugins":[{"type":"calico"}],"value":"%s"}`, p.Name)
		text, err := renderConflist(h.cfg)
		errtest.Must(t, err)
		_, value, _ := strings.Cut(string(text), `"value":"`)
		got[p.Name] = strings.TrimSuffix(value, "\"}\n")
	}
	difftest.Want(t, "", want, got)
}

func TestATemplateFileWins(t *testing.T) {
	h := newHost(t)
	h.cfg.NetworkConfig = `{"name":"of the variable","plugins":[{"type":"calico"}]}`
	h.cfg.NetworkFile = filepath.Join(h.cfg.SourceDir, "..", "template")
	put(t, h.cfg.NetworkFile, `{"name":"of the file","plugins":[{"type":"calico"}]}`)
	h.install(t)
	if got := read(t, h.net("10-calico.conflist")); !strings.Contains(got, "of the file") {
		t.Errorf("conflist is %s", got)
	}
}

// The configuration of a single plugin goes into a .conf, as CNI 0.3.0 and before had it.
func TestASinglePlugin(t *testing.T) {
	h := newHost(t)
	h.cfg.ConfName = "10-calico.conf"
	h.cfg.NetworkConfig = `{"name":"x","type":"calico"}`
	h.install(t)
	if got := read(t, h.net("10-calico.conf")); got != h.cfg.NetworkConfig+"\n" {
		t.Errorf("configuration is %q", got)
	}
}

// The plugins in each directory are installed and proven, and removed again.
func TestSeveralDirectoriesOfPlugins(t *testing.T) {
	h := calicoHost(t)
	second := h.withSecond(t)
	h.install(t)
	for _, name := range []string{"bandwidth", "calico", "calico-ipam", "loopback", "portmap"} {
		if got := read(t, filepath.Join(second, name)); got != plugin(name) {
			t.Errorf("%s is %q", name, got)
		}
	}
	put(t, filepath.Join(second, "calico"), "#!/bin/sh\nexit 3\n")
	h.cfg.UpdateBinaries = false
	if err := h.installer(fixedToken("secret")).Install(t.Context()); err == nil || !strings.Contains(err.Error(), second+"/calico") {
		t.Errorf("error %v does not name the plugin of the second directory", err)
	}
	unlink(t, filepath.Join(second, "calico"))
	h.uninstall(t)
	if left, err := os.ReadDir(second); err != nil || len(left) > 0 {
		t.Errorf("left in the second directory: %v, %v", left, err)
	}
	if got := read(t, h.bin("calico")); got != plugin("Calico's calico") {
		t.Errorf("calico is %q after the uninstallation", got)
	}
}

// withSecond adds a second directory of plugins to a host, as on hosts with an unwritable first one.
func (h *host) withSecond(t *testing.T) (second string) {
	t.Helper()
	second = filepath.Join(filepath.Dir(h.cfg.SourceDir), "second")
	errtest.Must(t, os.Mkdir(second, 0o755))
	h.cfg.HostBinDirs = append(h.cfg.HostBinDirs, second)
	return second
}

// Of two directories either may be unusable, whatever its content.
func TestOneReadOnlyDirectoryOfPlugins(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil  func(t *testing.T, h *host)
		usable int
	}{
		"the first is read-only":  {func(t *testing.T, h *host) { readOnly(t, h.cfg.HostBinDirs[0]) }, 1},
		"the second is read-only": {func(t *testing.T, h *host) { readOnly(t, h.cfg.HostBinDirs[1]) }, 0},
		"the first is immutable":  {func(t *testing.T, h *host) { immutable(t, h.cfg.HostBinDirs[0]) }, 1},
		"the first has an old plugin, and a leftover": {func(t *testing.T, h *host) {
			put(t, h.bin("calico"), "#!/bin/sh\nexit 3\n")
			put(t, h.bin(".tortie-1.tmp"), "")
			readOnly(t, h.cfg.HostBinDirs[0])
		}, 1},
		"the first is not mounted": {func(_ *testing.T, h *host) { h.cfg.HostBinDirs[0] += "/missing" }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.withSecond(t)
			tt.spoil(t, h)
			h.install(t)
			for _, name := range []string{"bandwidth", "calico", "calico-ipam", "loopback", "portmap"} {
				if got := read(t, filepath.Join(h.cfg.HostBinDirs[tt.usable], name)); got != plugin(name) {
					t.Errorf("%s is %q", name, got)
				}
			}
			if !there(h.net("10-calico.conflist"))() {
				t.Error("there is no conflist")
			}
			if left := h.cfg.HostBinDirs[1-tt.usable]; !strings.Contains(h.log.String(), "level=WARN") || !strings.Contains(h.log.String(), left) {
				t.Errorf("nobody is told of %s:\n%s", left, h.log.String())
			}
			h.uninstall(t)
			if there(filepath.Join(h.cfg.HostBinDirs[tt.usable], "calico"))() {
				t.Error("calico is left after the uninstallation")
			}
		})
	}
}

func TestNoWritableDirectoryOfPlugins(t *testing.T) {
	h := newHost(t)
	second := h.withSecond(t)
	readOnly(t, h.cfg.HostBinDirs[0])
	readOnly(t, second)
	err := h.installer(fixedToken("secret")).Install(t.Context())
	if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "read-write") || there(h.net("10-calico.conflist"))() {
		t.Errorf("error %v; conflist: %v", err, there(h.net("10-calico.conflist"))())
	}
}

// Where plugins are not updated, a read-only directory needs those that the configuration uses, and no more.
func TestPluginsThatAReadOnlyDirectoryNeeds(t *testing.T) {
	const plain = `{"name":"x","plugins":[{"type":"calico","ipam":{"type":"calico-ipam"}},{"type":"of-the-host","ipam":7}%s]}`
	for name, tt := range map[string]struct {
		template string
		have     []string
		lacks    string
	}{
		"two for a conflist that names no other": {fmt.Sprintf(plain, ""), []string{"calico", "calico-ipam"}, ""},
		"no calico-ipam":                         {fmt.Sprintf(plain, ""), []string{"calico", "portmap", "bandwidth"}, "calico-ipam"},
		"one that the conflist names is missing": {fmt.Sprintf(plain, `,{"type":"portmap"}`), []string{"calico", "calico-ipam"}, "portmap"},
		"one that the conflist names is there":   {fmt.Sprintf(plain, `,{"type":"portmap"}`), []string{"calico", "calico-ipam", "portmap"}, ""},
		"the built-in conflist names two more":   {"", []string{"calico", "calico-ipam", "portmap"}, "bandwidth"},
		"all of the built-in conflist":           {"", []string{"calico", "calico-ipam", "portmap", "bandwidth"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.cfg.UpdateBinaries, h.cfg.NetworkConfig = false, tt.template
			for _, name := range tt.have {
				put(t, h.bin(name), plugin("the host's "+name))
				errtest.Must(t, os.Chmod(h.bin(name), 0o755))
			}
			readOnly(t, h.cfg.HostBinDirs[0])
			err := h.installer(fixedToken("secret")).Install(t.Context())
			if tt.lacks == "" && err != nil {
				t.Errorf("%v is not enough: %v", tt.have, err)
			}
			if tt.lacks != "" && (!errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), tt.lacks)) {
				t.Errorf("error %v, want one that says that there is no %s", err, tt.lacks)
			}
		})
	}
}

// An earlier installation's configuration under another name, here Calico's, is removed after the new one is written,
// and restored.
func TestAnEarlierName(t *testing.T) {
	h := calicoHost(t)
	before := h.tree(t)
	h.cfg.ConfName = "05-tortie.conflist"
	i := h.installer(fixedToken("secret"))
	i.hooks.replace = func(path string, content []byte, mode os.FileMode) (bool, error) {
		if !there(h.net("10-calico.conflist"))() {
			t.Errorf("the earlier configuration had gone before %s was written", path)
		}
		return hostfile.Replace(path, content, mode)
	}
	errtest.Must(t, i.Install(t.Context()))
	if there(h.net("10-calico.conflist"))() || !there(h.net("05-tortie.conflist"))() {
		t.Errorf("files on the host: %q", h.files(t))
	}
	h.uninstall(t)
	if diff := cmp.Diff(before, h.tree(t)); diff != "" {
		t.Errorf("after it is uninstalled (-before +after):\n%s", diff)
	}
}

// The operator no longer uses a name of the configuration, and only the ledger knows it: a file of that name would come
// first for ever. One that was changed since stays.
func TestANameThatWasTakenBack(t *testing.T) {
	for change, stays := range map[string]bool{"": false, "{}": true} {
		h := newHost(t)
		h.cfg.ConfName = "05-tortie.conflist"
		h.install(t)
		if change != "" {
			put(t, h.net("05-tortie.conflist"), change)
		}
		h.cfg.ConfName = "10-calico.conflist"
		h.install(t)
		if got := there(h.net("05-tortie.conflist"))(); got != stays {
			t.Errorf("changed to %q: the earlier configuration is there: %v", change, got)
		}
		if told := len(h.said()) > 0; told != stays {
			t.Errorf("changed to %q: events %q", change, h.said())
		}
	}
}
