package cniconf

import (
	"os"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestEveryKeyOfCalico: each key of Calico's network configuration is acted on, refused or named, and Unread names
// exactly the named ones.
func TestEveryKeyOfCalico(t *testing.T) {
	text, err := os.ReadFile("testdata/calico-keys.txt")
	errtest.Must(t, err)
	known := map[string]api.Fate{}
	for _, k := range Keys {
		if known[k.Key] != "" {
			t.Errorf("%s is there twice", k.Key)
		}
		known[k.Key] = k.Fate
		if k.Fate == api.Named && k.Why == "" {
			t.Errorf("%s: nothing says why it has no effect", k.Key)
		}
	}
	seen := 0
	for line := range strings.Lines(string(text)) {
		key := strings.TrimSpace(line)
		if strings.HasPrefix(key, "#") {
			continue
		}
		if seen++; known[key] == "" {
			t.Errorf("%s of Calico's: say in Keys what becomes of it", key)
		}
	}
	if seen < 60 {
		t.Errorf("%d keys", seen)
	}
	for _, k := range Keys {
		if k.Key == "type" || k.Key == "ipam.type" {
			continue
		}
		inner, closing := `"x"`, ""
		path := strings.Split(k.Key, ".")
		if strings.HasPrefix(k.Key, "args.") {
			path = []string{"args", "org.apache.mesos"}
		}
		for i := len(path) - 1; i > 0; i-- {
			inner, closing = `{"`+path[i]+`":`+inner, closing+"}"
			if path[i-1] == "ipam" {
				inner = `{"type":"calico-ipam",` + inner[1:]
			}
		}
		conf := `{"plugins":[{"type":"calico","` + path[0] + `":` + inner + closing + `}]}`
		if got := Unread([]byte(conf)); (got != "") != (k.Fate == api.Named) || got != "" && !strings.Contains(got, k.Why) {
			t.Errorf("%s, which is %s: %q, of %s", k.Key, k.Fate, got, conf)
		}
	}
}

func TestUnread(t *testing.T) {
	for conf, want := range map[string]string{
		`{"type":"calico","MTU":1400,"ipam":{"type":"calico-ipam"}}`: "",
		`{"type":"calico","mtuu":1400,"ipam":{"type":"calico-ipam",` +
			`"ipv4_pool":["a"]}}`: "ipam.ipv4_pool, mtuu",
		`{"type":"calico","ipam":{"type":"host-local","dataDir":"/x"}}`: "",
		`{"plugins":[{"type":"calico","feature_control":{"floating_ip":true}},{"type":"portmap",` +
			`"snat":true}]}`: "feature_control.floating_ip",
		`{"plugins":[{"type":"calico","policy":"k8s"}]}`: "policy",
		`{"plugins":[{"type":"bridge","mtuu":1}]}`:       "",
		`{"plugins":[{"type":"calico","prevResult":{"x":1},"runtimeConfig":{"y":2},"cni.dev/valid-attachments":[],"args":{}}]}`: "",
		`{`: "",
	} {
		if got := Unread([]byte(conf)); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", conf, got, want)
		}
	}
}
