package plugin_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const (
	cooldownFile = "/var/run/calico/tortie/cooldown"
	getConfig    = "calico GET ipamconfigs"
)

// A cooldown noted by an ADD serves a DEL without facts of the agent; a damaged or old note does not.
func TestNotedCooldown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func() error // to the file that the ADD left
		asks   bool
		cools  bool
	}{
		"as the ADD left it": {change: func() error { return nil }},
		"of ten minutes":     {change: func() error { return os.WriteFile(cooldownFile, []byte("600"), 0o600) }, cools: true},
		"damaged":            {change: func() error { return os.WriteFile(cooldownFile, []byte("-7x"), 0o600) }, asks: true},
		"gone":               {change: func() error { return os.Remove(cooldownFile) }, asks: true},
		"old": {
			change: func() error { return os.Chtimes(cooldownFile, time.Time{}, time.Now().Add(-time.Hour)) },
			asks:   true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.newPod(t, "web")
			s.add(t).ok(t)
			w.host.On(t, tt.change)
			w.proxy.take()
			s.del(t).ok(t)
			if asked := slices.Contains(w.proxy.take(), getConfig); asked != tt.asks {
				t.Errorf("DEL asked for the IPAMConfig: %v, want %v", asked, tt.asks)
			}
			if cools := w.coolingDown(t); cools != tt.cools {
				t.Errorf("the address cools down: %v, want %v", cools, tt.cools)
			}
		})
	}
}

// coolingDown reports whether an address in the world's blocks does.
func (w *world) coolingDown(t testing.TB) bool {
	t.Helper()
	for _, block := range w.api.list(t, "IPAMBlock", "") {
		if affinity, _, _ := unstructured.NestedString(block.Object, "spec", "affinity"); affinity != "host:"+w.name {
			continue
		}
		attributes, _, err := unstructured.NestedSlice(block.Object, "spec", "attributes")
		errtest.Must(t, err)
		for _, a := range attributes {
			if fields, ok := a.(map[string]any); ok && fields["releasedAt"] != nil {
				return true
			}
		}
	}
	return false
}
