package policies_test

import (
	"testing"
	"time"
)

const (
	soon     = 10 * time.Second
	denyAll  = `{"podSelector":{},"policyTypes":["Ingress"]}`
	allowApp = `{"podSelector":{"matchLabels":{"app":"server"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"client"}}}]}]}`
)

// A policy is in force soon after it was applied, and stays so without the agent.
func TestPolicyIsInForce(t *testing.T) {
	n := newNode(t)
	server := n.start(t, "server", "10.90.0.1")
	client, other := n.start(t, "client", "10.90.0.2"), n.start(t, "other", "10.90.0.3")
	server.EchoUDP(t, "10.90.0.1:53")
	const at = "10.90.0.1:53"
	w, stop := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	eventually(t, soon, "without a policy all passes", func() bool { return reaches(t, client, at) && reaches(t, other, at) })
	n.policy(t, "deny", denyAll)
	begun := time.Now()
	eventually(t, soon, "denied", func() bool { return !reaches(t, client, at) })
	t.Logf("denied within %v", time.Since(begun))
	n.policy(t, "allow", allowApp)
	begun = time.Now()
	eventually(t, soon, "allowed", func() bool { return reaches(t, client, at) })
	t.Logf("allowed within %v", time.Since(begun))
	if reaches(t, other, at) {
		t.Error("another pod is allowed too")
	}
	if s := w.Seen(); s.Policed != 3 || s.Open != 0 || s.Policies != 2 {
		t.Errorf("seen: %+v", s)
	}

	stop()
	if !reaches(t, client, at) || reaches(t, other, at) {
		t.Error("without an agent other packets pass than before")
	}
	w, _ = n.work(t)
	eventually(t, soon, "in force again", func() bool { return w.Seen().Enforcing })
	if !reaches(t, client, at) || reaches(t, other, at) {
		t.Error("with the next agent other packets pass than before")
	}

}
