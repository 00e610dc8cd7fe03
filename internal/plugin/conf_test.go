package plugin

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const minimalConf = `{"name":"net","cniVersion":"1.0.0","type":"calico","ipam":{"type":"calico-ipam"},"policy":{"type":"k8s"},
	"kubernetes":{"kubeconfig":"/k"},"nodename":"n1","nodename_file_optional":true}`

// edited returns minimalConf with keys set to JSON values; "" removes one.
func edited(t testing.TB, edits map[string]string) []byte {
	t.Helper()
	var conf map[string]json.RawMessage
	errtest.Must(t, json.Unmarshal([]byte(minimalConf), &conf))
	for key, value := range edits {
		conf[key] = json.RawMessage(value)
		if value == "" {
			delete(conf, key)
		}
	}
	text, err := json.Marshal(conf)
	errtest.Must(t, err)
	return text
}

// code returns the CNI code that an error carries.
func code(t testing.TB, err error) uint {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v carries no code", err)
	}
	return e.Code
}

func TestConfDefaults(t *testing.T) {
	c, err := parseConf(calico, []byte(minimalConf))
	errtest.Must(t, err)
	if !c.wantsV4() || c.wantsV6() {
		t.Errorf("without assign_ipv4 and assign_ipv6: IPv4 %v, IPv6 %v; want IPv4 only", c.wantsV4(), c.wantsV6())
	}
	got := map[string]any{}
	walk("", reflect.ValueOf(&c).Elem(), func(key string, _ reflect.StructTag, v reflect.Value) {
		if !v.IsZero() {
			got[key] = v.Interface()
		}
	})
	want := map[string]any{
		// of minimalConf
		"nodename": "n1", "nodename_file_optional": true, "ipam.type": "calico-ipam", "policy.type": "k8s", "kubernetes.kubeconfig": "/k",
		// the defaults
		"datastore_type": "kubernetes", "nodename_file": "/var/lib/calico/nodename", "num_queues": 1, "device_type": "veth",
		"log_level": "info", "log_file_max_size": 100, "log_file_max_age": 30, "log_file_max_count": 10,
		"ipam.assign_ipv4": "true", "ipam.assign_ipv6": "false", "ipam_lock_file": "/var/run/calico/ipam.lock",
		"endpoint_status_dir": "/var/run/calico/endpoint-status",
	}
	difftest.Want(t, "configuration", want, got)
}

func TestConfOfTheInstallContainer(t *testing.T) {
	text, err := os.ReadFile("../install/conflist.json")
	errtest.Must(t, err)
	fill := strings.NewReplacer("__KUBERNETES_NODE_NAME__", "n1", "__KUBECONFIG_FILEPATH__", "/k", "__DATASTORE_TYPE__", "kubernetes",
		"__LOG_LEVEL__", "debug", "__LOG_FILE_PATH__", "/l", "__CNI_MTU__", "1440", "__POLICY_ENFORCED__", "true",
		"__POLICY_SETUP_TIMEOUT__", "5", "__LOG_FILE_MAX_SIZE__", "1", "__LOG_FILE_MAX_AGE__", "1", "__LOG_FILE_MAX_COUNT__", "1")
	var list struct {
		Name    string
		Plugins []map[string]any
	}
	errtest.Must(t, json.Unmarshal([]byte(fill.Replace(string(text))), &list))
	list.Plugins[0]["name"] = list.Name // as the runtime does
	own, err := json.Marshal(list.Plugins[0])
	errtest.Must(t, err)
	c, err := parseConf(calico, own)
	errtest.Must(t, err)
	if c.Nodename != "n1" || c.Kubernetes.Kubeconfig != "/k" || c.LogLevel != "debug" || c.LogFilePath != "/l" || c.MTU != 1440 ||
		c.PolicySetupTimeout != 5 || c.Name != "k8s-pod-network" {
		t.Errorf("read as %+v", c)
	}
}

// Calico takes strings, of which one each changes the default.
func TestConfFamilies(t *testing.T) {
	for _, tt := range []struct {
		ipam   string
		v4, v6 bool
	}{
		{`{"type":"x","assign_ipv4":"true","assign_ipv6":"true"}`, true, true},
		{`{"type":"x","assign_ipv4":"false","assign_ipv6":"false"}`, false, false},
		{`{"type":"x","assign_ipv4":"no","assign_ipv6":"yes"}`, true, false},
		{`{"type":"x","assign_ipv4":"False","assign_ipv6":"True"}`, true, false},
	} {
		c, err := parseConf(calico, edited(t, map[string]string{"ipam": tt.ipam}))
		errtest.Must(t, err)
		if c.wantsV4() != tt.v4 || c.wantsV6() != tt.v6 {
			t.Errorf("%s: IPv4 %v, IPv6 %v; want %v, %v", tt.ipam, c.wantsV4(), c.wantsV6(), tt.v4, tt.v6)
		}
	}
}

func TestConfBadValues(t *testing.T) {
	for _, tt := range []struct {
		key, value string
		code       uint
		want       []string // the field, the value and the remedy
	}{
		{"name", `""`, types.ErrInvalidNetworkConfig, []string{"name", "letters"}},
		{"name", `"a b"`, types.ErrInvalidNetworkConfig, []string{"name", `"a b"`, "letters"}},
		{"datastore_type", `"etcd"`, types.ErrInvalidNetworkConfig, []string{"datastore_type", `"etcd"`, "kubernetes or etcdv3"}},
		{"datastore_type", `"etcdv3"`, types.ErrInvalidNetworkConfig, []string{"etcd_endpoints", "is empty", "ETCD_ENDPOINTS"}},
		{"calico_api_group", `"projectcalico.org/v1"`, types.ErrInvalidNetworkConfig,
			[]string{"calico_api_group", `"projectcalico.org/v1"`, "crd.projectcalico.org/v1 or projectcalico.org/v3"}},
		{"device_type", `"ipvlan"`, types.ErrInvalidNetworkConfig, []string{"device_type", `"ipvlan"`, "veth or netkit"}},
		{"dataplane_options", `{"type":"grpc"}`, types.ErrInvalidNetworkConfig, []string{"dataplane_options.type", `"grpc"`, "remove the key"}},
		{"readiness_gates", `["http://a/","10.0.0.1"]`, types.ErrInvalidNetworkConfig,
			[]string{"readiness_gates", `"10.0.0.1"`, "http://127.0.0.1:9099"}},
		{"policy_setup_timeout_seconds", "-1", types.ErrInvalidNetworkConfig, []string{"policy_setup_timeout_seconds", "-1"}},
		{"log_file_max_size", "-1", types.ErrInvalidNetworkConfig, []string{"log_file_max_size", "-1"}},
		{"log_file_max_age", "-1", types.ErrInvalidNetworkConfig, []string{"log_file_max_age", "-1"}},
		{"log_file_max_count", "-1", types.ErrInvalidNetworkConfig, []string{"log_file_max_count", "-1"}},
		{"qps", "-0.5", types.ErrInvalidNetworkConfig, []string{"qps", "-0.5"}},
		{"burst", "-1", types.ErrInvalidNetworkConfig, []string{"burst", "-1"}},
		{"kubernetes", `{"k8s_api_root":"10.0.0.1"}`, types.ErrInvalidNetworkConfig,
			[]string{"kubernetes.k8s_api_root", `"10.0.0.1"`, "https://"}},
		{"policy", `{"type":"k8s","k8s_client_key":"/k"}`, types.ErrInvalidNetworkConfig, []string{"policy.k8s_client_certificate"}},
		{"policy", `{"type":"x"}`, types.ErrInvalidNetworkConfig, []string{"policy.type", `"x"`, "k8s"}},
		{"ipam", "", types.ErrInvalidNetworkConfig, []string{"ipam.type", "calico-ipam"}},
		{"mtu", "-1", types.ErrInvalidNetworkConfig, []string{"mtu", "-1", "0"}},
		{"mtu", "65536", types.ErrInvalidNetworkConfig, []string{"mtu", "65536"}},
		{"num_queues", "-2", types.ErrInvalidNetworkConfig, []string{"num_queues", "-2", "1"}},
		{"mtu", `"1440"`, types.ErrDecodingFailure, []string{"mtu", "string"}},
		{"ipam", `{"type":"x","assign_ipv4":true}`, types.ErrDecodingFailure, []string{"assign_ipv4", "bool"}},
		{"ipam", `{"type":"x","ipv4_pools":"10.0.0.0/8"}`, types.ErrDecodingFailure, []string{"ipv4_pools"}},
	} {
		_, err := parseConf(calico, edited(t, map[string]string{tt.key: tt.value}))
		if err == nil || code(t, err) != tt.code {
			t.Errorf("%s %s: %v, want code %d", tt.key, tt.value, err, tt.code)
			continue
		}
		difftest.Contains(t, err.Error(), tt.want...)
	}
	for _, text := range []string{"", "{", "[]", `"net"`, minimalConf + "x"} {
		if _, err := parseConf(calico, []byte(text)); err == nil || code(t, err) != types.ErrDecodingFailure {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestConfOfEtcd(t *testing.T) {
	for _, tt := range []struct {
		edits   map[string]string
		problem string
	}{
		{map[string]string{"etcd_endpoints": `"https://a:2379"`}, ""},
		{map[string]string{"etcd_discovery_srv": `"example.org"`}, ""},
		{map[string]string{"etcd_endpoints": `"https://a:2379"`, "policy": "", "kubernetes": ""}, ""}, // containers that are no pods
		{map[string]string{"etcd_endpoints": `"https://a:2379"`, "etcd_discovery_srv": `"example.org"`}, "etcd_endpoints etcd_discovery_srv"},
		{map[string]string{"etcd_endpoints": `"https://a:2379"`, "etcd_cert_file": `"/c"`}, "etcd_key_file etcd_cert_file"},
	} {
		c, err := readConf(calico, edited(t, tt.edits), noEnv)
		if tt.problem == "" && (err != nil || c.DatastoreType != datastoreEtcd) {
			t.Errorf("%v: datastore %s, %v", tt.edits, c.DatastoreType, err)
		}
		if tt.problem != "" && !errtest.Names(err, tt.problem) {
			t.Errorf("%v: %v, want %q", tt.edits, err, tt.problem)
		}
	}
}

func noEnv(string) (string, bool) { return "", false }

func TestConfIgnoresWhatItDoesNotKnow(t *testing.T) {
	if _, err := parseConf(calico, edited(t, map[string]string{"windows_use_single_network": "true", "vxlan_vni": "4096"})); err != nil {
		t.Error(err)
	}
}

func readRequest(t *testing.T, args *skel.CmdArgs) (*session, error) {
	t.Helper()
	conf, err := parseConf(calico, args.StdinData)
	errtest.Must(t, err)
	return (&call{CmdArgs: args, plugin: calico, conf: conf}).session()
}

func TestArgs(t *testing.T) {
	args := &skel.CmdArgs{
		StdinData: []byte(minimalConf), ContainerID: "c1", Netns: "/n", IfName: "eth0", Path: "/p",
		Args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0.x;OTHER_PLUGIN=1",
	}
	r, err := readRequest(t, args)
	errtest.Must(t, err)
	if r.namespace != "ns" || r.pod != "web-0.x" || r.containerID != "c1" || r.netns != "/n" || r.ifName != "eth0" ||
		r.path != "/p" || r.node != "n1" {
		t.Errorf("read as %+v", r)
	}
	for _, tt := range []struct{ args, want string }{
		{"", "K8S_POD_NAME"},
		{"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;IP=10.0.0.5/26", `IP "10.0.0.5/26"`},
		{"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;IP=fe80::1%eth0", `IP "fe80::1%eth0"`},
		{"K8S_POD_NAME=web", "K8S_POD_NAMESPACE"},
		{"K8S_POD_NAMESPACE=ns", "K8S_POD_NAME"},
		{"K8S_POD_NAMESPACE=;K8S_POD_NAME=web", "K8S_POD_NAMESPACE"},
		{"K8S_POD_NAMESPACE=ns;K8S_POD_NAME", `"K8S_POD_NAME"`},
		{"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a=b", `"K8S_POD_NAME=a=b"`},
		{"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=..", `K8S_POD_NAME ".."`},
		{"K8S_POD_NAMESPACE=../x;K8S_POD_NAME=web", `K8S_POD_NAMESPACE "../x"`},
		{"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=Web", `K8S_POD_NAME "Web"`},
		{"CommonArgs=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web", "CommonArgs"},
	} {
		args.Args = tt.args
		_, err := readRequest(t, args)
		if code(t, err) != types.ErrInvalidEnvironmentVariables || !errtest.Names(err, tt.want) {
			t.Errorf("CNI_ARGS %q: %v, want code %d and %q", tt.args, err, types.ErrInvalidEnvironmentVariables, tt.want)
		}
	}
}

func TestNodeName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nodename")
	put := func(text string) {
		errtest.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	missing := filepath.Join(t.TempDir(), "none")
	put("of-file\n")
	host, err := os.Hostname()
	errtest.Must(t, err)
	for _, tt := range []struct {
		conf netConf
		want string
	}{
		{netConf{Nodename: "of-conf", NodenameFile: file}, "of-conf"},
		{netConf{NodenameFile: file}, "of-file"},
		{netConf{Nodename: "of-conf", NodenameFile: missing, NodenameFileOptional: true}, "of-conf"},
		{netConf{NodenameFile: missing, NodenameFileOptional: true}, strings.ToLower(host)},
		{netConf{NodenameFile: missing, NodenameFileOptional: true, Hostname: "deprecated"}, "deprecated"},
		{netConf{NodenameFile: file, Hostname: "deprecated"}, "of-file"},
	} {
		got, guessed, err := nodeName(&tt.conf)
		if err != nil || got != tt.want || guessed != (tt.want == strings.ToLower(host)) {
			t.Errorf("%+v: %q (guessed: %v), %v; want %q", tt.conf, got, guessed, err, tt.want)
		}
	}
	// Its own name for the node does not help: the file is the sign that the agent has run.
	_, _, err = nodeName(&netConf{Nodename: "of-conf", NodenameFile: missing})
	if code(t, err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "tortie-node") {
		t.Errorf("without the file: %v", err)
	}
}

func TestPodMTU(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mtu")
	if mtu, err := podMTU(&netConf{}, file); err != nil || mtu != 0 {
		t.Errorf("without a file: %d, %v; want the kernel's default", mtu, err)
	}
	for text, want := range map[string]int{"1480": 1480, " 1480 \n": 1480, "68": 68, "65535": 65535} {
		errtest.Must(t, os.WriteFile(file, []byte(text), 0o600))
		if mtu, err := podMTU(&netConf{}, file); err != nil || mtu != want {
			t.Errorf("file %q: %d, %v", text, mtu, err)
		}
		if mtu, err := podMTU(&netConf{MTU: 1300}, file); err != nil || mtu != 1300 {
			t.Errorf("configured: %d, %v", mtu, err)
		}
	}
	for _, text := range []string{"", "\n", "big", "67", "65536", "-1", "1480x", "1480 1500", strings.Repeat("9", 100)} {
		errtest.Must(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := podMTU(&netConf{}, file)
		if code(t, err) != types.ErrInvalidNetworkConfig || !errtest.Names(err, file+" tortie-node") {
			t.Errorf("file %q: %v", text, err)
		}
		if len(err.Error()) > len(file)+100 {
			t.Errorf("the error repeats the whole file: %v", err)
		}
	}
	errtest.Must(t, os.Remove(file))
	_, err := podMTU(&netConf{RequireMTUFile: true}, file)
	if code(t, err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "require_mtu_file") {
		t.Errorf("no file, which is required: %v", err)
	}
	if _, err := podMTU(&netConf{}, filepath.Dir(file)); code(t, err) != types.ErrIOFailure {
		t.Errorf("a directory: %v", err)
	}
}

// exact decodes JSON with the digits of its numbers.
func exact(t testing.TB, text string) (v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// calico-ipam uses its own keys only, and none that are for the plugin that executes it. Both find the installer's
// kubeconfig.
func TestConfOfOtherPlugins(t *testing.T) {
	foreign := map[string]string{
		"type": `"bridge"`, "policy": `{"type":"x"}`, "mtu": "-1", "num_queues": "-2", "device_type": `"x"`,
		"dataplane_options": `{"type":"grpc"}`,
		"readiness_gates":   `["x"]`, "policy_setup_timeout_seconds": "-1", "nodename_file_optional": "", "kubernetes": "",
	}
	c, err := readConf(calicoIPAM, edited(t, foreign), noEnv)
	if err != nil || c.Kubernetes.Kubeconfig != defaultKubeconfig || !c.NodenameFileOptional || c.ofPods() {
		t.Errorf("%+v, %v", c, err)
	}
	for _, key := range []string{"name", "datastore_type", "calico_api_group"} {
		value := map[string]string{"calico_api_group": `"projectcalico.org/v1"`}[key]
		if value == "" {
			value = `"a b"`
		}
		if _, err := readConf(calicoIPAM, edited(t, map[string]string{key: value}), noEnv); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s %s: %v", key, value, err)
		}
	}
	for kubernetes, want := range map[string]string{
		"": defaultKubeconfig, `{"node_name":"x"}`: defaultKubeconfig, `{"kubeconfig":"/k"}`: "/k", `{"k8s_api_root":"https://10.0.0.1"}`: "",
	} {
		c, err := readConf(calico, edited(t, map[string]string{"kubernetes": kubernetes, "policy": ""}), noEnv)
		if err != nil || c.Kubernetes.Kubeconfig != want {
			t.Errorf("%s: kubeconfig %q, %v; want %q", kubernetes, c.Kubernetes.Kubeconfig, err, want)
		}
	}
}
