package desired

import (
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
)

func TestBelieve(t *testing.T) {
	const right, wrong = "10.0.0.2/24", "10.0.0.9/24"
	at := func(ms int) time.Time { return time.UnixMilli(int64(1e12 + ms)) }
	type look struct {
		ms    int
		uid   string
		says  string // "": nothing
		want  string
		again time.Duration
	}
	for name, looks := range map[string][]look{
		"an edit that is put right": {
			{0, "a", right, right, 0}, {100, "a", wrong, right, changeGrace}, {200, "a", right, right, 0}, {9000, "a", wrong, right, changeGrace},
		},
		"an edit that is edited": {{0, "a", right, right, 0}, {100, "a", wrong, right, changeGrace},
			{1100, "a", "nonsense", right, changeGrace - time.Second}},
		"a removal": {{0, "a", right, right, 0}, {100, "a", "", right, changeGrace}, {3100, "a", "", "", 0}},
		"a new address": {{0, "a", right, right, 0}, {100, "a", wrong, right, changeGrace}, {3100, "a", wrong, wrong, 0},
			{3200, "a", right, wrong, changeGrace}},
		"the first address":         {{0, "a", "", "", 0}, {100, "a", right, right, 0}},
		"another Node of this name": {{0, "a", right, right, 0}, {100, "b", wrong, wrong, 0}},
	} {
		known := Announcements{}
		for _, l := range looks {
			annotations := map[string]string{"other": "kept"}
			if l.says != "" {
				annotations[api.AnnotationIPv4Address] = l.says
			}
			nodes := []api.Node{
				{Meta: api.Meta{Name: "self", UID: "s", Annotations: map[string]string{api.AnnotationIPv4Address: time.Duration(l.ms).String()}}},
				{Meta: api.Meta{Name: "other", UID: l.uid, Annotations: annotations}},
			}
			got, again := known.Believe(nodes, "self", at(l.ms))
			if text := got[1].Annotations[api.AnnotationIPv4Address]; text != l.want || again != l.again || got[1].Annotations["other"] != "kept" {
				t.Errorf("%s, after %d ms: %q again in %v, want %q and %v", name, l.ms, text, again, l.want, l.again)
			}
			if annotations[api.AnnotationIPv4Address] != l.says {
				t.Errorf("%s: the watch's own annotations were changed", name)
			}
			if got[0].Annotations[api.AnnotationIPv4Address] != time.Duration(l.ms).String() {
				t.Errorf("%s: this node's own annotation was not believed", name)
			}
		}
		if known.Believe(nil, "self", at(10000)); len(known) != 0 {
			t.Errorf("%s: a Node that is gone is remembered", name)
		}
	}
}
