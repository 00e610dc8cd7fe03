package policies

import (
	"testing"

	"github.com/tortie-net/tortie/internal/policy"
)

// Only policies that judge packets without connection tracking have to see each packet of a connection.
func TestJudgesEachPacket(t *testing.T) {
	for stage, want := range map[policy.Stage]bool{policy.Untracked: true, policy.Untranslated: false, policy.Forwarded: false} {
		var of policy.Host
		of.Programs[stage] = [2]string{"", "a program"}
		if got := judgesEachPacket(&policy.Ruleset{Hosts: map[string]policy.Host{"eth0": of}}); got != want {
			t.Errorf("stage %v: %v", stage, got)
		}
	}
}
