package plugin_test

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// A noted block may be wrong or outdated: an address is still assigned once and released, at the cost of requests.
func TestBlockIsNotAsNoted(t *testing.T) {
	t.Parallel()
	file := filepath.Join(filepath.Dir(facts.DefaultFile), "block-v4.json")
	for name, spoil := range map[string]func(t *testing.T, w *world, before string){
		"as it was two ADDs before": func(t *testing.T, w *world, before string) { w.host.Write(t, file, before) },
		"somebody else has written it": func(t *testing.T, w *world, _ string) {
			for _, b := range w.blocks(t) {
				w.api.annotate(t, "IPAMBlock", "", b, "written", "again")
			}
		},
		"no file": func(t *testing.T, w *world, _ string) { w.host.remove(t, file) },
		"empty":   func(t *testing.T, w *world, _ string) { w.host.Write(t, file, "") },
		"no block": func(t *testing.T, w *world, _ string) {
			w.host.Write(t, file, `{"metadata":{"name":"`+w.blocks(t)[0]+`","uid":"1","resourceVersion":"1"}}`)
		},
		"another block": func(t *testing.T, w *world, _ string) {
			w.host.Write(t, file, `{"metadata":{"name":"10-0-0-0-26","uid":"1","resourceVersion":"1"},"spec":{"unallocated":[1]}}`)
		},
		"a directory": func(t *testing.T, w *world, _ string) {
			w.host.remove(t, file)
			w.host.Write(t, file+"/x", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			held, before := map[netip.Addr]*sandbox{}, ""
			add := func(pod string) *sandbox {
				w.tellFacts(t, nil)
				s := w.newPod(t, pod)
				a := address(t, s.add(t).result(t))
				if other := held[a]; other != nil {
					t.Fatalf("%s has the address %s of %s", pod, a, other.pod)
				}
				held[a] = s
				return s
			}
			add("first")
			before = w.host.Read(t, file)
			again := add("again")
			add("second")
			spoil(t, w, before)
			add("third")
			w.wantHeld(t, held)
			again.add(t).ok(t) // the same address, which the noted block must not hide
			w.wantHeld(t, held)
			if name == "as it was two ADDs before" {
				spoil(t, w, before)
			}
			for a, s := range held {
				w.tellFacts(t, nil)
				s.del(t).ok(t)
				delete(held, a)
				w.wantHeld(t, held)
			}
		})
	}
}

// blocks are the names of the blocks with an address of the world.
func (w *world) blocks(t *testing.T) (all []string) {
	t.Helper()
	for _, b := range w.api.list(t, "IPAMBlock", "") {
		cidr, err := netip.ParsePrefix(b.Object["spec"].(map[string]any)["cidr"].(string))
		if err == nil && netip.MustParsePrefix(w.cidr).Contains(cidr.Addr()) {
			all = append(all, b.GetName())
		}
	}
	return all
}
