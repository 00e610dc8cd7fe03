package config

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	if err != nil {
		t.Fatal(err)
	}
	want := Install{
		NetDir: "/etc/cni/net.d", HostNetDir: "/host/etc/cni/net.d", HostBinDirs: []string{"/host/opt/cni/bin"},
		SourceDir: "/opt/cni/bin", ConfName: "10-calico.conflist", NodeName: "node1", ServiceHost: "10.96.0.1", ServicePort: 443,
		ServiceAccount: "tortie-cni", LogLevel: "info", LogFile: "/var/log/calico/cni/cni.log",
		AccountDir: "/var/run/secrets/kubernetes.io/serviceaccount",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestLoadInstallValues(t *testing.T) {
	got, err := LoadInstall(env(minimal(map[string]string{
		"KUBERNETES_SERVICE_HOST": "fd00::1",
		"KUBERNETES_SERVICE_PORT": "6443",
		"CNI_MTU":                 " 1400 ",
		"LOG_LEVEL":               "DEBUG",
		"CNI_CONF_NAME":           "", // as in a manifest that leaves it empty
		"HOST_CNI_BIN_DIR":        "/host/opt/cni/bin, /host/secondary",
	})))
	if err != nil {
		t.Fatal(err)
	}
	if got.APIServer() != "[fd00::1]:6443" || got.MTU != 1400 || got.LogLevel != "debug" || got.ConfName != "10-calico.conflist" {
		t.Errorf("got %+v", got)
	}
	if diff := cmp.Diff([]string{"/host/opt/cni/bin", "/host/secondary"}, got.HostBinDirs); diff != "" {
		t.Errorf("bin dirs (-want +got):\n%s", diff)
	}
}

func TestLoadInstallRefuses(t *testing.T) {
	cases := []struct{ name, value, remedy string }{
		{"KUBERNETES_NODE_NAME", "", "must be set from the field spec.nodeName"},
		{"KUBERNETES_SERVICE_HOST", "", "must be the address of the API server"},
		{"KUBERNETES_SERVICE_PORT", "https", "must be a number from 1 to 65535"},
		{"CNI_MTU", "-1", "must be a number from 0 to 65535"},
		{"CNI_NET_DIR", "etc/cni", "must be an absolute path"},
		{"HOST_CNI_BIN_DIR", "/a,b", "must be an absolute path"},
		{"CNI_CONF_NAME", "../10-calico.conflist", "without a directory"},
		{"CNI_CONF_NAME", "10-calico.conf", "must be a file name that ends in .conflist"},
		{"LOG_LEVEL", "loud", "must be one of info, debug, warn, error"},
		{"DATASTORE_TYPE", "etcdv3", "must be one of kubernetes"},
	}
	for _, c := range cases {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			_, err := LoadInstall(env(minimal(map[string]string{c.name: c.value})))
			if err == nil || !strings.Contains(err.Error(), c.name) || !strings.Contains(err.Error(), c.remedy) {
				t.Errorf("error %v does not name %s and say %q", err, c.name, c.remedy)
			}
		})
	}
}

func TestLoadInstallReportsEveryMistake(t *testing.T) {
	_, err := LoadInstall(env(map[string]string{"CNI_MTU": "big", "LOG_LEVEL": "loud"}))
	if err == nil {
		t.Fatal("accepted")
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 4 {
		t.Errorf("%d problems, want CNI_MTU, LOG_LEVEL, node name and service host:\n%v", len(lines), err)
	}
}

// Every field of a raw struct needs its tags: a missing one would read the variable "" and leave a hole in the docs.
func TestVariablesAreDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range Describe(RawInstall{}) {
		if v.Name == "" || v.Help == "" || seen[v.Name] {
			t.Errorf("variable %+v needs a unique name and a help text", v)
		}
		seen[v.Name] = true
	}
}
