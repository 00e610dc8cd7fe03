package controllers

import (
	"strings"
	"testing"
	"time"
)

// Each step is a time in seconds and the Deployments at it, as "NAMESPACE:REPLICAS:READY". The result is the
// Deployments to which pools and tiers are left.
func TestWhoKeepsPoolsAndTiers(t *testing.T) {
	type step struct {
		at          int
		deployments string
		want        string
	}
	for what, steps := range map[string][]step{
		"none":                     {{0, "", ""}},
		"one works":                {{0, "kube-system:1:1", "kube-system/c"}},
		"scaled to nothing":        {{0, "kube-system:1:1", "kube-system/c"}, {10, "kube-system:0:0", ""}},
		"deleted":                  {{0, "kube-system:1:1", "kube-system/c"}, {10, "", ""}},
		"one is replaced":          {{0, "a:1:1", "a/c"}, {10, "a:1:0", "a/c"}, {400, "a:1:1", "a/c"}},
		"one does not come up":     {{0, "a:1:0", "a/c"}, {299, "a:1:0", "a/c"}, {300, "a:1:0", ""}},
		"one comes back late":      {{0, "a:1:0", "a/c"}, {300, "a:1:0", ""}, {310, "a:1:1", "a/c"}, {320, "a:1:0", "a/c"}, {630, "a:1:0", ""}},
		"without a number, it's 1": {{0, "kube-system::0", "kube-system/c"}},
		"two, of which one works":  {{0, "kube-system:1:0 calico-system:2:1", "calico-system/c"}},
		"two work":                 {{0, "kube-system:1:1 calico-system:1:1", "calico-system/c, kube-system/c"}},
	} {
		var s calicoState
		for _, st := range steps {
			var all []deployment
			for text := range strings.FieldsSeq(st.deployments) {
				parts := strings.Split(text, ":")
				var d deployment
				d.Name, d.Namespace, d.Status.Ready = "c", parts[0], int(parts[2][0]-'0')
				if parts[1] != "" {
					d.Spec.Replicas = new(int(parts[1][0] - '0'))
				}
				all = append(all, d)
			}
			if s = s.next(all, time.Unix(int64(st.at), 0)); s.by != st.want {
				t.Errorf("%s: after %d s left to %q, want %q", what, st.at, s.by, st.want)
			}
		}
	}
}
