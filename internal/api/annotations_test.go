package api

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestEveryAnnotationOfCalico: each annotation that Calico reads on objects of Kubernetes, or writes there, is acted on
// or named. Named annotations, and unknown ones in Calico's domains, are without effect, and an error gives the reason.
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
	for kind, key := range map[string]string{"Pod": "cni.projectcalico.org/floatingIP", "Namespace": AnnotationIPAddrs,
		"Node": "projectcalico.org/AsNumber", "Service": "projectcalico.org/loadBalancerIP"} {
		if got := UnreadOf(kind, map[string]string{key: "x", "other.org/x": "y", "notprojectcalico.org/x": "z"}); !slices.Equal(got,
			[]string{key}) {
			t.Errorf("%s on a %s: %v", key, kind, got)
		}
		if text := ErrUnread(kind, key, "it").Error(); !strings.Contains(text, key) || !strings.Contains(text, "spelt") {
			t.Errorf("%s", text)
		}
	}
}

// TestManyUnreadAnnotations: however many annotations of whatever length objects have, a few are kept and named, and
// how many more there are.
func TestManyUnreadAnnotations(t *testing.T) {
	many := map[string]string{}
	for i := range 12000 {
		many[fmt.Sprintf("projectcalico.org/%05d", i)] = "x"
	}
	keys := UnreadOf("Pod", many)
	if len(keys) != mostUnread+1 || keys[0] != "projectcalico.org/00000" || keys[7] != "projectcalico.org/00007" || keys[8] != "11992 more" {
		t.Errorf("%q", keys)
	}
	if text := ErrUnread("Pod", keys[8], "it").Error(); text != "11992 more annotations of Calico's of it have no effect: remove them" {
		t.Error(text)
	}
	by := map[string][]string{}
	for i := range 12000 {
		by[fmt.Sprintf("%05d", i)] = []string{fmt.Sprintf("projectcalico.org/%05d", i), "projectcalico.org/all"}
	}
	all := Examples("Pod", by, func(pod string) string { return pod })
	if len(all) != mostExamples+1 || !strings.Contains(all[0].Error(), "projectcalico.org/00000 of 00000") ||
		!strings.HasPrefix(all[10].Error(), "11991 more annotations of Calico's of Pods") {
		t.Errorf("%q", all)
	}
	long := "projectcalico.org/\x1b" + strings.Repeat("x", 300)
	if text := ErrUnread("Pod", long, "it").Error(); strings.Contains(text, "\x1b") || strings.Contains(text, strings.Repeat("x", mostKey)) ||
		!strings.Contains(text, `projectcalico.org/\x1bxxx`) {
		t.Errorf("%q", text)
	}
}
