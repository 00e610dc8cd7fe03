package netpol_test

import (
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// Where the kernel cannot log all is right without.
func TestCompareWithoutLogs(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	e.Silence(4096)
	mustSync(t, e, sample())
	rs := sample()
	ns.Within(t, func() error {
		c, err := netpol.Compare(t.Context(), "cali", rs)
		for link := range rs.Endpoints {
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				if err == nil && c.Link(link, d) != "" {
					t.Errorf("%s %s: %s", link, d, c.Link(link, d))
				}
			}
		}
		return err
	})
}

// What the kernel lacks, has for another pod, or has in another form is reported for each link, and nothing is reported
// where all is right.
func TestCompare(t *testing.T) {
	ns := netnstest.New(t)
	compare := func(rs *policy.Ruleset) *netpol.Comparison {
		t.Helper()
		var c *netpol.Comparison
		ns.Within(t, func() (err error) { c, err = netpol.Compare(t.Context(), "cali", rs); return err })
		return c
	}
	if c := compare(sample()); c.Table || !strings.Contains(c.Link("cali1", policy.Ingress), "no table") {
		t.Errorf("without a table: %q", c.Link("cali1", policy.Ingress))
	}
	mustSync(t, newEngine(t, ns), sample())
	rs := sample()
	for link := range rs.Endpoints {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			if text := compare(rs).Link(link, d); text != "" {
				t.Errorf("%s %s: %s", link, d, text)
			}
		}
	}
	for a := range rs.Members {
		if !compare(rs).Members(a) {
			t.Errorf("%s is not in its sets", a)
		}
	}
	if compare(rs).DropsToHost() {
		t.Error("pods are said to be kept from their node")
	}
	drops := sample()
	drops.HostRules.DropFromPods = true
	mustSync(t, newEngine(t, ns), drops)
	if !compare(rs).DropsToHost() {
		t.Error("pods are kept from their node, which is not said")
	}
	mustSync(t, newEngine(t, ns), sample())
	rs.Endpoints["cali4"] = policy.Endpoint{UID: "uid-4"}
	rs.Endpoints["cali3"] = policy.Endpoint{UID: "uid-5"}
	rs.Endpoints["cali1"] = policy.Endpoint{UID: "uid-1"}
	rs.Members[addr("10.0.0.1")] = []policy.SetID{0x11}
	c := compare(rs)
	for link, want := range map[string]string{"cali4": "no program yet", "cali3": "UID uid-3", "cali1": "its policies differ"} {
		if text := c.Link(link, policy.Ingress); !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", link, text, want)
		}
	}
	if c.Members(addr("10.0.0.1")) || !c.Members(addr("10.0.0.2")) {
		t.Error("members of 10.0.0.1 differ, and of 10.0.0.2 do not")
	}
	ns.Run(t, "nft", "flush", "chain", "inet", netpol.TableName, "egress")
	if text := compare(sample()).Link("cali2", policy.Egress); !strings.Contains(text, "base chain") {
		t.Errorf("a base chain is empty: %q", text)
	}
}
