package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLoadPlugin(t *testing.T) {
	got, err := LoadPlugin(env(nil))
	if diff := cmp.Diff(Plugin{InterfacePrefix: "cali"}, got); err != nil || diff != "" {
		t.Errorf("of nothing: %v (-want +got):\n%s", err, diff)
	}
	got, err = LoadPlugin(env(map[string]string{
		"KUBECONFIG": "/plain", "CALICO_KUBECONFIG": "/prefixed", "K8S_CA_FILE": "/plain", "CALICO_K8S_CA_FILE": " ",
		"CALICO_FELIX_INTERFACEPREFIX": "no", "K8S_INSECURE_SKIP_TLS_VERIFY": "TRUE", "ETCD_PASSWORD": "p",
	}))
	want := Plugin{Kubeconfig: "/prefixed", K8sCAFile: "/plain", InterfacePrefix: "cali", K8sInsecure: true, EtcdPassword: "p"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("with prefixes: %v (-want +got):\n%s", err, diff)
	}
}

func TestLoadPluginRefuses(t *testing.T) {
	for name, value := range map[string]string{
		"K8S_CLIENT_QPS": "-1", "K8S_CLIENT_BURST": "many", "K8S_INSECURE_SKIP_TLS_VERIFY": "2", "USE_POD_CIDR": "x",
		"K8S_DISABLE_NODE_POLL": "x",
		"FELIX_INTERFACEPREFIX": "a/b,cali",
	} {
		_, err := LoadPlugin(env(map[string]string{name: value}))
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

func TestLoadUpgrade(t *testing.T) {
	got, err := LoadUpgrade(env(map[string]string{"KUBERNETES_NODE_NAME": "n1", "KUBERNETES_SERVICE_HOST": "fd00::1"}))
	want := Upgrade{
		Plugin: Plugin{InterfacePrefix: "cali"}, NodeName: "n1", BinDir: "/host/opt/cni/bin", APIServer: "https://[fd00::1]:443",
		TokenFile: "/var/run/secrets/kubernetes.io/serviceaccount/token", CAFile: "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("in a pod: %v (-want +got):\n%s", err, diff)
	}
	if got, err = LoadUpgrade(env(map[string]string{"KUBERNETES_NODE_NAME": "n1", "KUBECONFIG": "/k"})); err != nil ||
		got.APIServer != "" || got.Kubeconfig != "/k" {
		t.Errorf("with a kubeconfig: %+v, %v", got, err)
	}
	_, err = LoadUpgrade(
		env(map[string]string{"DATASTORE_TYPE": "etcdv3", "LOG_LEVEL": "loud", "HOST_CNI_BIN_DIR": "bin", "USE_POD_CIDR": "x"}))
	for _, name := range []string{"KUBERNETES_NODE_NAME", "KUBERNETES_SERVICE_HOST", "DATASTORE_TYPE", "LOG_LEVEL",
		"HOST_CNI_BIN_DIR", "USE_POD_CIDR"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in %v", name, err)
		}
	}
}

func TestPluginVariablesAreDescribed(t *testing.T) {
	for _, raw := range []any{PluginVariables{}, UpgradeVariables{}} {
		seen := map[string]bool{}
		for _, v := range Describe(raw) {
			if v.Name == "" || v.Help == "" || seen[v.Name] {
				t.Errorf("variable %+v needs a unique name and a help text", v)
			}
			seen[v.Name] = true
		}
	}
}
