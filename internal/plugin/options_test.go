package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Every key needs its tags: one without help would leave a hole in docs/.
func TestOptionsAreDescribed(t *testing.T) {
	options := Options()
	if len(options) < 50 {
		t.Fatalf("only %d options", len(options))
	}
	var keys []string
	for _, o := range options {
		if o.Help == "" || !strings.HasSuffix(o.Help, ".") {
			t.Errorf("%s: help %q is no sentence", o.Key, o.Help)
		}
		keys = append(keys, o.Key)
	}
	for _, o := range options {
		if o.Instead != "" && !slices.Contains(keys, o.Instead) {
			t.Errorf("%s: use %s instead, which is no key", o.Key, o.Instead)
		}
	}
	slices.Sort(keys)
	if unique := slices.Compact(slices.Clone(keys)); len(unique) != len(keys) {
		t.Errorf("a key is there twice: %v", keys)
	}
	for _, a := range Arguments() {
		if a.Help == "" {
			t.Errorf("argument %s has no help", a.Key)
		}
	}
}

// variables maps each variable of the environment to its effect on the configuration.
var variables = map[string]struct {
	value string
	got   func(*netConf) any
	want  any
}{
	"DATASTORE_TYPE":               {"etcdv3", func(c *netConf) any { return c.DatastoreType }, "etcdv3"},
	"KUBECONFIG":                   {"/env", func(c *netConf) any { return c.Kubernetes.Kubeconfig }, "/env"},
	"K8S_API_ENDPOINT":             {"https://env", func(c *netConf) any { return c.access().Server }, "https://env"},
	"K8S_CA_FILE":                  {"/env", func(c *netConf) any { return c.access().CAFile }, "/env"},
	"K8S_CERT_FILE":                {"/env", func(c *netConf) any { return c.access().CertFile }, "/env"},
	"K8S_KEY_FILE":                 {"/env", func(c *netConf) any { return c.access().KeyFile }, "/env"},
	"K8S_CURRENT_CONTEXT":          {"env", func(c *netConf) any { return c.access().Context }, "env"},
	"K8S_INSECURE_SKIP_TLS_VERIFY": {"true", func(c *netConf) any { return c.access().Insecure }, true},
	"K8S_CLIENT_QPS":               {"7.5", works, true},
	"K8S_CLIENT_BURST":             {"7", works, true},
	"K8S_DISABLE_NODE_POLL":        {"true", works, true},
	"USE_POD_CIDR":                 {"true", works, true},
	"CALICO_API_GROUP":             {"crd.projectcalico.org/v1", func(c *netConf) any { return c.CalicoAPIGroup }, "crd.projectcalico.org/v1"},
	"ETCD_ENDPOINTS": {"https://env:2379", func(c *netConf) any { return c.EtcdEndpoints + " " + c.DatastoreType },
		"https://env:2379 etcdv3"},
	"ETCD_DISCOVERY_SRV":    {"env.org", func(c *netConf) any { return c.EtcdDiscoverySRV + " " + c.DatastoreType }, "env.org etcdv3"},
	"ETCD_CA_CERT_FILE":     {"/env", func(c *netConf) any { return c.EtcdCACertFile }, "/env"},
	"ETCD_CERT_FILE":        {"/env", func(c *netConf) any { return c.EtcdCertFile }, "/env"},
	"ETCD_KEY_FILE":         {"/env", func(c *netConf) any { return c.EtcdKeyFile }, "/env"},
	"ETCD_USERNAME":         {"env", func(c *netConf) any { return c.env.EtcdUsername }, "env"},
	"ETCD_PASSWORD":         {"env", func(c *netConf) any { return c.env.EtcdPassword }, "env"},
	"FELIX_INTERFACEPREFIX": {"env,cali", func(c *netConf) any { return c.vethPrefix() }, "env"},
}

func works(*netConf) any { return true }

// companions are the other variables that a variable requires.
var companions = map[string]map[string]string{
	"DATASTORE_TYPE": {"ETCD_ENDPOINTS": "https://env:2379"},
	"K8S_CERT_FILE":  {"K8S_KEY_FILE": "/key"},
	"K8S_KEY_FILE":   {"K8S_CERT_FILE": "/cert"},
	"ETCD_CERT_FILE": {"ETCD_KEY_FILE": "/key"},
	"ETCD_KEY_FILE":  {"ETCD_CERT_FILE": "/cert"},
}

func TestEveryVariable(t *testing.T) {
	bare := edited(t, map[string]string{"kubernetes": ""})
	for _, v := range config.Describe(config.PluginVariables{}) {
		tt, ok := variables[v.Name]
		if !ok {
			t.Errorf("no test says what %s does", v.Name)
			continue
		}
		for _, prefix := range []string{"", "CALICO_"} {
			if prefix != "" && (strings.HasPrefix(v.Name, "CALICO_") || strings.HasPrefix(v.Name, "FELIX_")) {
				continue
			}
			c, err := readConf(calico, bare, func(name string) (string, bool) {
				if name == prefix+v.Name {
					return tt.value, true
				}
				if name == v.Name {
					return "loses", true // to the one with the prefix
				}
				value, ok := companions[v.Name][name]
				if !ok && name == "KUBECONFIG" {
					return "/k", true
				}
				return value, ok
			})
			if err != nil {
				t.Errorf("%s%s=%s: %v", prefix, v.Name, tt.value, err)
				continue
			}
			difftest.Want(t, fmt.Sprintf("%s%s=%s", prefix, v.Name, tt.value), tt.want, tt.got(&c))
		}
	}
	if all := config.Describe(config.PluginVariables{}); len(all) != len(variables) {
		t.Errorf("%d variables and %d tests", len(all), len(variables))
	}
}

func TestConfWinsOverEnvironment(t *testing.T) {
	c, err := readConf(calico, edited(t, map[string]string{
		"datastore_type": `"etcdv3"`, "etcd_discovery_srv": `"conf.org"`, "etcd_cert_file": `"/conf"`, "etcd_key_file": `"/conf"`,
		"etcd_ca_cert_file": `"/conf"`,
		"calico_api_group":  `"conf"`, "kubernetes": `{"kubeconfig":"/conf","k8s_api_root":"https://conf"}`,
		"policy": `{"type":"k8s","k8s_api_root":"https://loses/api/v1","k8s_certificate_authority":"/conf","k8s_client_certificate":"/conf",` +
			`"k8s_client_key":"/conf"}`,
	}), func(name string) (string, bool) {
		switch name {
		case "DATASTORE_TYPE":
			return "kubernetes", true
		case "K8S_API_ENDPOINT", "ETCD_ENDPOINTS":
			return "https://env", true
		}
		return "/env", !strings.HasPrefix(name, "CALICO_") && (strings.HasSuffix(name, "_FILE") || name == "KUBECONFIG")
	})
	errtest.Must(t, err)
	got := []string{c.DatastoreType, c.EtcdEndpoints, c.EtcdDiscoverySRV, c.EtcdCertFile, c.EtcdKeyFile, c.EtcdCACertFile,
		c.CalicoAPIGroup, c.Kubernetes.Kubeconfig, c.Kubernetes.APIRoot, c.Policy.CA, c.Policy.ClientCert, c.Policy.ClientKey}
	want := []string{"etcdv3", "", "conf.org", "/conf", "/conf", "/conf", "conf", "/conf", "https://conf", "/conf", "/conf", "/conf"}
	difftest.Want(t, "configuration", want, got)
}

func TestBadEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"K8S_CLIENT_QPS": "fast", "K8S_CLIENT_BURST": "-1", "K8S_INSECURE_SKIP_TLS_VERIFY": "maybe", "K8S_DISABLE_NODE_POLL": "2x",
		"USE_POD_CIDR": "usePodCidr", "FELIX_INTERFACEPREFIX": "calico", "CALICO_K8S_CLIENT_QPS": "NaN",
	} {
		_, err := readConf(calico, []byte(minimalConf), func(n string) (string, bool) { return value, n == name })
		if err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(name, "CALICO_")) || !strings.Contains(err.Error(), value) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

func TestDeprecatedKeys(t *testing.T) {
	c, err := readConf(calico, edited(t, map[string]string{
		"hostname": `"n2"`, "etcd_authority": `"10.0.0.1:2379"`, "etcd_scheme": `"https"`,
		"policy": `{"type":"k8s","k8s_api_root":"https://10.96.0.1/api/v1/","k8s_auth_token":"T","k8s_client_certificate":"/c",` +
			`"k8s_client_key":"/k","k8s_certificate_authority":"/ca"}`,
	}), noEnv)
	errtest.Must(t, err)
	var keys []string
	for _, o := range c.outdated {
		keys = append(keys, o.Key)
	}
	want := []string{"hostname", "policy.k8s_api_root", "policy.k8s_auth_token", "policy.k8s_client_certificate", "policy.k8s_client_key",
		"policy.k8s_certificate_authority", "etcd_authority", "etcd_scheme"}
	difftest.Want(t, "deprecated keys", want, keys)
	o := c.access()
	if c.EtcdEndpoints != "https://10.0.0.1:2379" || o.Server != "https://10.96.0.1" || o.Token != "T" || o.CAFile != "/ca" ||
		o.CertFile != "/c" || o.KeyFile != "/k" {
		t.Errorf("etcd at %s, API server as %+v", c.EtcdEndpoints, o)
	}
	// Their values from the environment are not deprecated.
	c, err = readConf(calico, []byte(minimalConf), func(name string) (string, bool) { return "/env", name == "K8S_CA_FILE" })
	if err != nil || len(c.outdated) != 0 || c.access().CAFile != "/env" {
		t.Errorf("of the environment: %v, %+v, %v", c.outdated, c.access(), err)
	}
}
