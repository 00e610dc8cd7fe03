package api

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestEveryAnnotationOfCalico: each annotation that Calico reads on objects of Kubernetes, or writes there, is acted on or named; those that are
// named, and those that are not Calico's although they are of its domains, are without effect, and an error says why.
func TestEveryAnnotationOfCalico(t *testing.T) {
	text, err := os.ReadFile("testdata/calico-annotations.txt")
	errtest.Must(t, err)
	seen := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		seen++
		kind, key, _ := strings.Cut(line, " ")
		i := slices.IndexFunc(CalicoAnnotations, func(i Input) bool { return i.On == kind && i.Key == key })
		if i < 0 {
			t.Errorf("%s on a %s: say in CalicoAnnotations what becomes of it", key, kind)
			continue
		}
		of := CalicoAnnotations[i]
		unread := UnreadOf(kind, map[string]string{key: "x"})
		if (len(unread) == 1) != (of.Fate == Named) {
			t.Errorf("%s on a %s is %s, and without effect: %v", key, kind, of.Fate, unread)
		}
		if of.Fate == Named && (of.Why == "" || !strings.Contains(ErrUnread(kind, key, "it").Error(), of.Why)) {
			t.Errorf("%s: nothing says why it has no effect: %v", key, ErrUnread(kind, key, "it"))
		}
	}
	if seen < 50 || seen != len(CalicoAnnotations) {
		t.Errorf("%d annotations, and %d in CalicoAnnotations", seen, len(CalicoAnnotations))
	}
	for kind, key := range map[string]string{"Pod": "cni.projectcalico.org/floatingIP", "Namespace": AnnotationIPAddrs, "Node": "projectcalico.org/AsNumber", "Service": "projectcalico.org/loadBalancerIP"} {
		if got := UnreadOf(kind, map[string]string{key: "x", "other.org/x": "y", "notprojectcalico.org/x": "z"}); !slices.Equal(got, []string{key}) {
			t.Errorf("%s on a %s: %v", key, kind, got)
		}
		if text := ErrUnread(kind, key, "it").Error(); !strings.Contains(text, key) || !strings.Contains(text, "spelt") {
			t.Errorf("%s", text)
		}
	}
}
