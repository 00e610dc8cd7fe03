package traffic

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// world is an echo behind a cable.
func world(t *testing.T) (here, there *netnstest.NS) {
	t.Helper()
	here, there = netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, here, "eth0", there, "eth0")
	here.Addr(t, "eth0", "10.0.0.1/24")
	there.Addr(t, "eth0", "10.0.0.2/24")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- there.Namespace.Do(func() error { return Serve(ctx, Port) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return here, there
}

func measure(t *testing.T, from *netnstest.NS) (r Result) {
	t.Helper()
	from.Within(t, func() error {
		r = Measure(t.Context(), netip.MustParseAddr("10.0.0.2"), Port)
		return nil
	})
	return r
}

func TestMeasure(t *testing.T) {
	here, _ := world(t)
	r := measure(t, here)
	if r.Problem != "" || r.Answered != packets || r.Sent != packets || r.Bytes != volume || r.Min == 0 || r.Min > r.Mean ||
		r.Mean > r.Max || r.Took == 0 {
		t.Errorf("%+v", r)
	}
	if text := r.String(); !strings.HasPrefix(text, "10.0.0.2: 25 of 25 packets answered, in ") ||
		!strings.Contains(text, "4 MiB there and back") {
		t.Errorf("it reads %q", text)
	}
}

// TestLoss: every fourth datagram is dropped, and the result reports it.
func TestLoss(t *testing.T) {
	here, there := world(t)
	there.Run(t, "nft",
		"add table ip t; add chain ip t in { type filter hook input priority 0; }; add rule ip t in udp dport 7007 numgen inc mod 4 == 1 drop")
	r := measure(t, here)
	if r.Answered >= r.Sent || r.Answered == 0 || !strings.Contains(r.Problem, "packets were lost") {
		t.Errorf("%+v", r)
	}
}

// TestLargePacketsVanish is the effect of an MTU that is too large for the path: small packets pass, and large ones are
// lost without an error.
func TestLargePacketsVanish(t *testing.T) {
	here, there := world(t)
	there.Run(t, "nft", "add table ip t; add chain ip t in { type filter hook input priority 0; }; add rule ip t in ip length > 1300 drop")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var r Result
	here.Within(t, func() error {
		r = Measure(ctx, netip.MustParseAddr("10.0.0.2"), Port)
		return nil
	})
	if r.Answered != packets || !strings.Contains(r.Problem, "MTU") {
		t.Errorf("%+v", r)
	}
}

func TestSilence(t *testing.T) {
	here, there := world(t)
	there.Run(t, "nft", "add table ip t; add chain ip t in { type filter hook input priority 0; policy drop; }")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	here.Within(t, func() error {
		if r := Measure(ctx, netip.MustParseAddr("10.0.0.2"), Port); r.Answered != 0 || r.Problem == "" {
			t.Errorf("%+v", r)
		}
		return nil
	})
}

func TestChoose(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus, cordoned bool) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: cordoned},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	all := []corev1.Node{node("a", "True", false), node("down", "Unknown", false), node("b", "True", false), node("cordoned", "True", true)}
	for range 20 {
		pair, err := choose(all)
		if slices.Sort(pair[:]); err != nil || pair != [2]string{"a", "b"} {
			t.Fatalf("%v, %v", pair, err)
		}
	}
	if pair, err := choose(all[:2]); err != nil || pair != [2]string{"a", "a"} {
		t.Errorf("of one: %v, %v", pair, err)
	}
	if _, err := choose(all[1:2]); err == nil || !strings.Contains(err.Error(), "Ready") {
		t.Errorf("of none: %v", err)
	}
}
