package plugin_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// TestSameAsCalico runs the plugins on a real Calico's input and compares their results and stored objects with
// Calico's. The changes in the kernel are compared in internal/kernel/podnet. The objects are of
// crd.projectcalico.org/v1, the only group of that Calico: the cluster is one of that group for this test.
func TestSameAsCalico(t *testing.T) {
	api, _ := inGroups(t, groups.V1)
	h := newHost(t)
	p := newProxy(t, h)
	h.Write(t, kubeconfigPath, kubeconfig(p, api.token))
	for _, file := range []string{"ippool.yaml", "node.yaml"} {
		api.create(t, before(t, file))
	}
	api.create(t, manifest(t, "{apiVersion: v1, kind: Namespace, metadata: {name: golden}}"))
	uid := api.create(t, before(t, "pod-after-add.yaml"))
	api.create(t, reservationOutside(t, "192.168.0.0/16", "192.168.154.0/26"))
	api.settle(t)
	t.Cleanup(func() { api.forgetNode(t, "gold-node") })
	web1 := goldenCall(t)
	web1.args = regexp.MustCompile("K8S_POD_UID=[^;]*").ReplaceAllString(web1.args, "K8S_POD_UID="+uid)
	useFirstAddress(t, h, web1)

	ns, _ := h.pod(t, "gold-pod")
	compareResult(t, h.call(t, web1).ok(t), ns)
	compareStored(t, api, "blockaffinity-gold-node-192-168-154-0-26.yaml")
	compareStored(t, api, "ipamblock-192-168-154-0-26.yaml")
	compareStored(t, api, "ipamhandle.yaml")
	compareStored(t, api, "pod-after-add.yaml")

	web1.command = "DEL"
	if a := h.call(t, web1).ok(t); a.stdout != "" {
		t.Errorf("DEL printed %q", a.stdout)
	}
	compareStored(t, api, "blockaffinity-gold-node-192-168-154-0-26.yaml")
	compareStored(t, api, "ipamblock-192-168-154-0-26-after-del.yaml")
	compareStored(t, api, "pod-after-del.yaml")
	if handles := api.list(t, "IPAMHandle", ""); len(handles) != 0 {
		t.Errorf("handles after DEL: %v", handles)
	}
}

func golden(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "golden", file))
	errtest.Must(t, err)
	return string(text)
}

// before is a golden object as it was when somebody created it.
func before(t testing.TB, file string) *unstructured.Unstructured {
	t.Helper()
	obj := manifest(t, golden(t, file))
	meta := map[string]any{"name": obj.GetName(), "labels": stringMap(obj.GetLabels())}
	if ns := obj.GetNamespace(); ns != "" {
		meta["namespace"] = ns
	}
	annotations := obj.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool { return strings.HasPrefix(key, "cni.projectcalico.org/") })
	meta["annotations"] = stringMap(annotations)
	obj.Object["metadata"] = meta
	delete(obj.Object, "status")
	return obj
}

func stringMap(m map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// reservationOutside leaves of a pool only one block to be claimed: the golden one. Where in a pool a node begins to
// look is its own affair, and another place with Calico than here.
func reservationOutside(t testing.TB, pool, block string) *unstructured.Unstructured {
	t.Helper()
	var outside []any
	for b := netip.MustParsePrefix(block); b.Bits() > netip.MustParsePrefix(pool).Bits(); b = netip.PrefixFrom(b.Addr(), b.Bits()-1).Masked() {
		sibling := b.Addr().As4()
		sibling[(b.Bits()-1)/8] ^= 1 << (7 - (b.Bits()-1)%8)
		outside = append(outside, netip.PrefixFrom(netip.AddrFrom4(sibling), b.Bits()).String())
	}
	obj := manifest(t, "{apiVersion: crd.projectcalico.org/v1, kind: IPReservation, metadata: {name: golden}}")
	obj.Object["spec"] = map[string]any{"reservedCIDRs": outside}
	return obj
}

// goldenCall is the execution that Calico's result is known of.
func goldenCall(t testing.TB) call {
	t.Helper()
	env := map[string]string{}
	for line := range strings.Lines(golden(t, "env.txt")) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[key] = value
	}
	return call{
		plugin: "calico", command: "ADD", container: env["CNI_CONTAINERID"], netns: env["CNI_NETNS"], ifName: env["CNI_IFNAME"],
		args: env["CNI_ARGS"], path: env["CNI_PATH"], stdin: golden(t, "stdin-conf.json"),
	}
}

// useFirstAddress has the first address of the node's block assigned and released, as it was before the golden ADD.
func useFirstAddress(t testing.TB, h *host, c call) {
	t.Helper()
	c.plugin, c.container = "calico-ipam", "first"
	h.call(t, c).ok(t)
	c.command = "DEL"
	h.call(t, c).ok(t)
}

func compareResult(t testing.TB, a answer, pod *netnstest.NS) {
	t.Helper()
	mac := pod.Link(t, "eth0").HardwareAddr.String()
	want := regexp.MustCompile(`"mac": "[^"]*"`).ReplaceAllString(golden(t, "cni-result-add.json"), `"mac": "`+mac+`"`)
	if diff := cmp.Diff(decode(t, want), decode(t, a.stdout)); diff != "" {
		t.Errorf("result (-Calico +here):\n%s", diff)
	}
}

func decode(t testing.TB, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

// compareStored compares an object with the golden one, except for fields that differ from run to run.
func compareStored(t testing.TB, api *cluster, file string) {
	t.Helper()
	want := manifest(t, golden(t, file))
	if want.GetKind() == "IPAMHandle" { // the one thing that Calico does not write
		want.SetAnnotations(map[string]string{"projectcalico.org/metadata": "{}", "tortie.io/node": "gold-node"})
	}
	got := api.get(t, want.GetKind(), want.GetNamespace(), want.GetName())
	if diff := cmp.Diff(stable(t, want), stable(t, got)); diff != "" {
		t.Errorf("stored object differs from %s (-Calico +here):\n%s", file, diff)
	}
}

var timestamp = regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9} \+0000 UTC$`)

// stable checks the form of values that differ from run to run and puts words in their place.
func stable(t testing.TB, obj *unstructured.Unstructured) any {
	t.Helper()
	meta := obj.Object["metadata"].(map[string]any)
	for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"} {
		delete(meta, key)
	}
	spec := obj.Object["spec"].(map[string]any)
	if at, ok := spec["affinityClaimTime"]; ok {
		if _, err := time.Parse(time.RFC3339, at.(string)); err != nil {
			t.Errorf("affinityClaimTime: %v", err)
		}
		spec["affinityClaimTime"] = "TIME"
	}
	attributes, _, _ := unstructured.NestedSlice(spec, "attributes")
	for _, a := range attributes {
		secondary := a.(map[string]any)["secondary"].(map[string]any)
		if !timestamp.MatchString(fmt.Sprint(secondary["timestamp"])) {
			t.Errorf("timestamp %v has another form than Calico's", secondary["timestamp"])
		}
		secondary["timestamp"] = "TIME"
	}
	if attributes != nil {
		spec["attributes"] = attributes
	}
	stableSequence(t, spec)
	return obj.Object
}

// stableSequence makes an allocation's sequence number relative to the block's, which begins with the time in
// nanoseconds.
func stableSequence(t testing.TB, spec map[string]any) {
	t.Helper()
	number, ok := spec["sequenceNumber"].(int64)
	if !ok {
		return
	}
	if at := time.Unix(0, number); at.Year() < 2026 {
		t.Errorf("sequenceNumber %d is no time", number)
	}
	spec["sequenceNumber"] = "N"
	of := spec["sequenceNumberForAllocation"].(map[string]any)
	for ordinal, n := range of {
		of[ordinal] = "N-" + strconv.FormatInt(number-n.(int64), 10)
	}
}
