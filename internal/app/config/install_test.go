package config

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func env(vars map[string]string) Env {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func minimal(extra map[string]string) map[string]string {
	vars := map[string]string{"KUBERNETES_NODE_NAME": "node1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
	maps.Copy(vars, extra)
	return vars
}

func TestLoadInstallDefaults(t *testing.T) {
	got, err := LoadInstall(env(minimal(nil)))
	errtest.Must(t, err)
	want := Install{
		InstallHost: InstallHost{
			NetDir: "/etc/cni/net.d", HostNetDir: "/host/etc/cni/net.d", HostBinDirs: []string{"/host/opt/cni/bin"},
			ConfName: "10-calico.conflist", OldConfName: "10-calico.conflist", StateDir: "/var/lib/calico", RunDir: "/var/run/calico",
			LogFile: "/var/log/calico/cni/cni.log",
		},
		SourceDir: "/opt/cni/bin", UpdateBinaries: true, ConfMode: 0o600, NodeName: "node1", ServiceHost: "10.96.0.1", ServicePort: 443,
		Protocol: "https", Datastore: "kubernetes", TLSDir: "/calico-secrets",
		ServiceAccount: "tortie-cni", LogLevel: "info", LogMaxSize: 100, LogMaxAge: 30, LogMaxCount: 10, Stay: true,
		Policy: PolicyOff, PolicyTimeout: 5, AccountDir: "/var/run/secrets/kubernetes.io/serviceaccount",
	}
	difftest.Want(t, "defaults", want, got)
}

func TestLoadInstallValues(t *testing.T) {
	got, err := LoadInstall(env(minimal(map[string]string{
		"KUBERNETES_SERVICE_HOST": "fd00::1",
		"KUBERNETES_SERVICE_PORT": "6443",
		"CNI_MTU":                 " 1400 ",
		"LOG_LEVEL":               "DEBUG",
		"CNI_CONF_NAME":           "", // as in a manifest that leaves it empty
		"HOST_CNI_BIN_DIR":        "/host/opt/cni/bin, /host/secondary",
		"SKIP_CNI_BINARIES":       "portmap, bandwidth",
		"UPDATE_CNI_BINARIES":     "no",
		"TEST_FILE_PERMISSION":    "0640",
		"SLEEP":                   "false",
		"TORTIE_AGENT_READY_URL":  "http://127.0.0.1:9099/readyz",
		"TORTIE_INSTALL_METRICS":  ":9095",
	})))
	errtest.Must(t, err)
	if got.APIServer() != "https://[fd00::1]:6443" || got.MTU != 1400 || got.LogLevel != "debug" || got.ConfName != "10-calico.conflist" {
		t.Errorf("got %+v", got)
	}
	if got.UpdateBinaries || got.Stay || got.ConfMode != 0o640 || len(got.SkipBinaries) != 2 || got.AgentReadyURL == "" ||
		got.MetricsAddr != ":9095" {
		t.Errorf("got %+v", got)
	}
	difftest.Want(t, "bin dirs", []string{"/host/opt/cni/bin", "/host/secondary"}, got.HostBinDirs)
}

func TestLoadInstallRefuses(t *testing.T) {
	cases := []struct{ name, value, remedy string }{
		{"KUBERNETES_SERVICE_HOST", "", "API server"},
		{"KUBERNETES_SERVICE_PORT", "https", "1 65535"},
		{"CNI_MTU", "-1", "0 65535"},
		{"CNI_NET_DIR", "etc/cni", "absolute"},
		{"HOST_CNI_BIN_DIR", "/a,b", "absolute"},
		{"CNI_CONF_NAME", "../10-calico.conflist", "directory"},
		{"CNI_CONF_NAME", "10-calico.yaml", ".conflist .conf .json"},
		{"CNI_OLD_CONF_NAME", "old", ".conflist .conf .json"},
		{"TEST_FILE_PERMISSION", "0999", "octal"},
		{"TEST_FILE_PERMISSION", "0200", "owner"},
		{"KUBERNETES_SERVICE_PROTOCOL", "ftp", "https http"},
		{"CALICO_API_GROUP", "projectcalico.org/v1", "projectcalico.org/v3"},
		{"CNI_TOKEN_REFRESH_INTERVAL", "5", "minute"},
		{"TORTIE_AGENT_READY_URL", "127.0.0.1:9099", "URL"},
		{"TORTIE_INSTALL_METRICS", "9095", "host:port"},
		{"UPDATE_CNI_BINARIES", "perhaps", "true false"},
		{"LOG_FILE_MAX_SIZE", "1M", "0 1048576"},
		{"LOG_LEVEL", "loud", "info debug warn error"},
		{"DATASTORE_TYPE", "consul", "kubernetes etcdv3"},
	}
	for _, c := range cases {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			_, err := LoadInstall(env(minimal(map[string]string{c.name: c.value})))
			if !errtest.Names(err, c.name+" "+c.remedy) {
				t.Errorf("error %v does not name %s and %s", err, c.name, c.remedy)
			}
		})
	}
}

func TestLoadInstallReportsEveryMistake(t *testing.T) {
	_, err := LoadInstall(env(map[string]string{"CNI_MTU": "big", "LOG_LEVEL": "loud"}))
	if err == nil {
		t.Fatal("accepted")
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 3 {
		t.Errorf("%d problems, want CNI_MTU, LOG_LEVEL and service host:\n%v", len(lines), err)
	}
}

func TestInstallWithoutAnAPIServer(t *testing.T) {
	got, err := LoadInstall(env(map[string]string{"DATASTORE_TYPE": "etcdv3"}))
	errtest.Must(t, err)
	if host, err := os.Hostname(); err != nil || got.NodeName != strings.ToLower(host) {
		t.Errorf("node name %q, want the host's %q (%v)", got.NodeName, host, err)
	}
}

func TestUninstallNeedsNothing(t *testing.T) {
	got, err := LoadInstallHost(env(nil))
	if err != nil || got.Conf() != "/host/etc/cni/net.d/10-calico.conflist" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := LoadInstallHost(env(map[string]string{"CNI_CONF_NAME": "a/b.conflist"})); err == nil {
		t.Error("a bad name was accepted")
	}
}

// Every field of a raw struct needs its tags: a missing one would read the variable "" and leave a hole in the docs.
func TestVariablesAreDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range Describe(Install{}) {
		if v.Name == "" || v.Help == "" || seen[v.Name] {
			t.Errorf("variable %+v needs a unique name and a help text", v)
		}
		seen[v.Name] = true
	}
}
