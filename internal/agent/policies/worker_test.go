package policies_test

import (
	"testing"
	"time"
)

const (
	soon     = 30 * time.Second
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

// Pods with the policies of others come, change and go without a look at all policies, and in force these are at once.
func TestPodsLikeOthersCompileNothing(t *testing.T) {
	n := newNode(t)
	server, a := n.start(t, "server", "10.90.0.1"), n.start(t, "a", "10.90.0.2")
	n.start(t, "b", "10.90.0.3")
	server.EchoUDP(t, "10.90.0.1:53")
	w, _ := n.work(t)
	n.policy(t, "isolated",
		`{"podSelector":{"matchExpressions":[{"key":"app","operator":"NotIn","values":["server"]}]},"policyTypes":["Ingress"]}`)
	eventually(t, soon, "in force", func() bool { s := w.Seen(); return s.Enforcing && s.Policed == 2 && s.Open == 1 })
	before := w.Seen().Compiles
	for range 3 {
		c := n.start(t, "c", "10.90.0.4")
		c.EchoUDP(t, "10.90.0.4:53")
		eventually(t, soon, "the pod sends", func() bool { return reaches(t, c, "10.90.0.1:53") })
		n.note(t, "c", "10.90.0.4")
		if s := w.Seen(); s.Policed != 3 {
			t.Errorf("%d pods with a policy, want 3", s.Policed)
		}
		if reaches(t, a, "10.90.0.4:53") {
			t.Error("the pod is not isolated")
		}
		n.remove(t, n.podPath(), "c")
		eventually(t, soon, "the pod is gone", func() bool { return w.Seen().Policed == 2 })
		eventually(t, soon, "its link is closed", func() bool { return !reaches(t, c, "10.90.0.1:53") })
		n.unwire(t, c)
	}
	if after := w.Seen().Compiles; after != before {
		t.Errorf("programs were made of all policies %d times", after-before)
	}
	n.remove(t, n.policyPath(), "isolated")
	eventually(t, soon, "a policy that goes counts for all", func() bool { return w.Seen().Open == 3 })
	if w.Seen().Compiles == before {
		t.Error("a policy is gone, and nothing was compiled")
	}
}
