package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// Nodes that are reached in the clear are reported once that has lasted, anew after each interruption, and the first by
// name.
func TestNodesInTheClearAreTold(t *testing.T) {
	over := func(v6 bool, nodes ...string) desired.CryptReport {
		return desired.CryptReport{Device: wireguard.Device{V6: v6}, Clear: nodes}
	}
	var c clearNodes
	begin := time.Now()
	for _, step := range []struct {
		after   time.Duration
		reports []desired.CryptReport
		want    []string // Events: the node, and a part of the text
	}{
		{0, []desired.CryptReport{over(false, "n2", "n3")}, nil},
		{clearPatience - 1, []desired.CryptReport{over(false, "n2")}, nil},
		{clearPatience, []desired.CryptReport{over(false, "n2", "n3"), over(true, "n2")}, []string{"n2 WireguardPublicKey:"}},
		{2 * clearPatience, []desired.CryptReport{over(false, "n2", "n3"), over(true, "n2")},
			[]string{"n2 WireguardPublicKey:", "n3 WireguardPublicKey:", "n2 WireguardPublicKeyV6:"}},
		{3 * clearPatience, nil, nil},
		{4 * clearPatience, []desired.CryptReport{over(false, "n2")}, nil},
	} {
		var got []string
		for _, err := range c.follow(step.reports, false, begin.Add(step.after)) {
			about, reason, ok := classify(desired.NodeObject("n1"), err)
			if !ok || reason != "NotEncrypted" || !strings.Contains(err.Error(), "in the clear") ||
				!strings.Contains(err.Error(), "FelixConfiguration node."+about.Name) {
				t.Errorf("%v: reason %q", err, reason)
			}
			_, key, _ := strings.Cut(err.Error(), "projectcalico.org/")
			key, _, _ = strings.Cut(key, " ")
			got = append(got, about.Name+" "+key)
		}
		difftest.Want(t, fmt.Sprint("after ", step.after), step.want, got)
	}

	c = clearNodes{}
	var names []string
	for i := range mostListed + 3 {
		names = append(names, fmt.Sprint("n", i))
	}
	c.follow([]desired.CryptReport{over(false, names...)}, true, begin)
	got := c.follow([]desired.CryptReport{over(false, names...)}, true, begin.Add(clearPatience))
	if len(got) != mostListed+1 || !strings.Contains(got[0].Error(), "are not sent") ||
		!strings.Contains(got[mostListed].Error(), "3 more nodes") {
		t.Errorf("of %d nodes: %v", len(names), got)
	}
}
