package netpol_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// refused reports whether the sender gets an error that a port is not reachable.
func refused(t *testing.T, from *netnstest.NS, network string, to netip.AddrPort) bool {
	t.Helper()
	var err error
	from.Within(t, func() error {
		var c net.Conn
		if c, err = net.DialTimeout(network, to.String(), 10*time.Second); err != nil {
			return nil
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err = c.Write([]byte("x")); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		return nil
	})
	return errors.Is(err, unix.ECONNREFUSED)
}

// rules returns the rules of the table that contain a text.
func rules(t *testing.T, ns *netnstest.NS, text string) (found []string) {
	for line := range strings.SplitSeq(list(t, ns), "\n") {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// With Reject senders get an answer to denied packets, in all hooks where the kernel can; a new engine, and Compare,
// without a Handling leave it as it is.
func TestHandling(t *testing.T) {
	h := newHost(t)
	rs := h.local(1, policy.Egress, policy.Program{Rest: policy.List{Else: deny("none")}, Logs: []policy.Logging{
		{LogRule: policy.LogRule{Policy: np("watch")}, When: policy.Program{Rest: policy.List{Else: allow}}}}})
	for key, p := range map[string]policy.Program{"web": tcp("web", 80), "out": tcp("out", 80), "pre": tcp("pre", 80, 81),
		"raw": {Sequence: []policy.Segment{
			{When: policy.Program{Ports: tcp("", 7).Ports}, Then: policy.Deny, Verdict: hostDeny("raw")},
			{When: policy.Program{Rest: policy.List{Else: allow}}, Then: policy.Allow, Verdict: allow}}}} {
		rs.Programs[key] = p
	}
	rs.Hosts = map[string]policy.Host{
		"eth0": {Name: "one", Programs: [policy.Stages][2]string{{"web", "out"}, {"web", ""}, {"pre", ""}, {"raw", ""}}},
	}
	rs.Handling = &policy.Handling{Reject: true, Logs: policy.LogRate{Packets: 7, Seconds: 60, Burst: 9}}
	mustSync(t, h.Engine, rs)
	restorable(t, h.node)
	steady(t, h.node, h.Engine, rs)

	at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	for name, told := range map[string]bool{
		"pod to outside":              refused(t, h.pods[1], "udp", at(outsideAddr, 9)),
		"pod to outside, TCP":         refused(t, h.pods[1], "tcp", at(outsideAddr, 9)),
		"pod to its node":             refused(t, h.pods[1], "udp", at(addr("10.1.1.1"), 9)),
		"pod to its node, IPv6":       refused(t, h.pods[1], "tcp", at(addr("fd01:1::1"), 9)),
		"outside to the node":         refused(t, h.outside, "tcp", at(nodeAddr, 81)),
		"outside to the node, IPv6":   refused(t, h.outside, "tcp", at(node6, 81)),
		"outside through the node":    refused(t, h.outside, "tcp", at(pod4(1), 81)),
		"the node's program, outside": refused(t, h.node, "tcp", at(outsideAddr, 81)),
	} {
		if !told {
			t.Errorf("%s: not told", name)
		}
	}
	for _, stage := range []string{"pre", "raw"} {
		if found := rules(t, h.node, "GlobalNetworkPolicy "+stage+`"`); len(found) == 0 || strings.Contains(strings.Join(found, ""), "reject") {
			t.Errorf("%s: %q, want drops", stage, found)
		}
	}
	if found := rules(t, h.node, "rule 0"); len(found) != 1 || !strings.Contains(found[0], "limit rate 7/minute burst 9 packets") {
		t.Errorf("Log rule: %q", found)
	}

	before := list(t, h.node)
	same := *rs
	same.Handling = nil
	mustSync(t, newEngine(t, h.node), &same)
	if after := list(t, h.node); after != before {
		t.Errorf("not told how packets are treated, an engine changes it:\n%s", after)
	}
	h.node.Within(t, func() error {
		c, err := netpol.Compare(t.Context(), "cali", &same)
		if err == nil && (c.Link("cali1", policy.Egress) != "" || c.Host("eth0", policy.Terminal, policy.Egress) != "" ||
			c.Host("eth0", policy.Untracked, policy.Ingress) != "") {
			t.Errorf("differs: %q", c.Link("cali1", policy.Egress))
		}
		return err
	})

	rs.Handling = &policy.Handling{}
	mustSync(t, h.Engine, rs)
	if found := rules(t, h.node, "reject"); len(found) != 0 || len(rules(t, h.node, "handling-")) != 0 {
		t.Errorf("left: %q", found)
	}
}

// A kernel that cannot reject drops, and stays at that.
func TestNoReject(t *testing.T) {
	h := newHost(t)
	rs := h.local(1, policy.Egress, policy.Program{Rest: policy.List{Else: deny("none")}})
	rs.Handling = &policy.Handling{Reject: true}
	mustSync(t, h.Engine, rs)
	if len(rules(t, h.node, "reject")) == 0 {
		t.Fatal("nothing is rejected")
	}
	if err := h.Renounce("masquerade"); err != nil {
		t.Errorf("something else: %v", err)
	}
	if err := h.Renounce("reject"); !errors.Is(err, netpol.ErrNoReject) || errors.Is(err, netpol.ErrNoLog) ||
		!strings.Contains(err.Error(), "nft_reject") {
		t.Errorf("%v", err)
	}
	mustSync(t, h.Engine, rs)
	if found := rules(t, h.node, "reject"); len(found) != 0 || len(rules(t, h.node, " drop")) == 0 {
		t.Errorf("left: %q", found)
	}
	if stats, err := h.Sync(t.Context(), rs, nil); err != nil || stats.Transactions != 0 {
		t.Errorf("it is tried again: %+v, %v", stats, err)
	}
	if err := h.Renounce("reject"); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// Packets that are part of no connection are judged by policies if these are to.
func TestInvalidPackets(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	rs := sample()
	mustSync(t, e, rs)
	if len(rules(t, ns, "ct state invalid")) == 0 || len(rules(t, ns, "tcp flags")) == 0 {
		t.Fatal("the rules that drop them are not found")
	}
	rs.Handling = &policy.Handling{Invalid: true}
	mustSync(t, e, rs)
	if left := append(rules(t, ns, "ct state invalid"), rules(t, ns, "tcp flags")...); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	restorable(t, ns)
	steady(t, ns, e, rs)
}
