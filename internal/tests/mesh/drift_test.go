package mesh

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// intervention is a manual change on a node with a running agent, and a check that it was reverted.
type intervention struct {
	what string
	undo []string // a command
	back func() error
}

// interventions returns the changes that need no tunnel. own is a block of the node, others one of the other node.
func interventions(t testing.TB, n *meshtest.Node, own, others, via string) []intervention {
	sysctl := func(key, want string) func() error {
		return func() error {
			if have := strings.TrimSpace(n.Run(t, "sysctl", "-n", key)); have != want {
				return fmt.Errorf("%s is %s", key, have)
			}
			return nil
		}
	}
	route := func(text string) func() error { return func() error { return n.Has(t, text) } }
	ruleset := n.Run(t, "nft", "-s", "list", "table", "inet", "tortie")
	table := func() error {
		if have, err := n.Try("nft", "-s", "list", "table", "inet", "tortie"); err != nil || have != ruleset {
			return fmt.Errorf("table inet tortie is now (%v)\n%s\nand was\n%s", err, have, ruleset)
		}
		return nil
	}
	all := []intervention{
		{"a route is removed", []string{"ip", "route", "del", others}, route(others + " via " + via + " dev eth0")},
		{"a route is changed", []string{"ip", "route", "replace", others, "via", "172.31.1.1", "dev", "eth0", "proto", "84"},
			route(others + " via " + via + " dev eth0")},
		{"the own block's route is removed", []string{"ip", "route", "del", "unreachable", own}, route("unreachable " + own)},
		{"the NAT chain is flushed", []string{"nft", "flush", "chain", "inet", "tortie", "nat-postrouting"}, table},
		{"the whole table is removed", []string{"nft", "delete", "table", "inet", "tortie"}, table},
		{"forwarding is turned off", []string{"sysctl", "-qw", "net.ipv4.ip_forward=0"}, sysctl("net.ipv4.ip_forward", "1")},
	}
	if set := setWith(ruleset, "10.90.0.0/16"); set != "" {
		all = append(all, intervention{"a set loses an element", []string{"nft", "delete element inet tortie " + set + " { 10.90.0.0/16 }"},
			table}, intervention{"a set gets an element", []string{"nft", "add element inet tortie " + set + " { 10.200.0.0/16 }"}, table})
	} else {
		t.Errorf("no set has the pool:\n%s", ruleset)
	}
	return all
}

// setWith returns the name of the set with an element, from the text of a table.
func setWith(ruleset, element string) string {
	name := ""
	for line := range strings.Lines(ruleset) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "set" {
			name = fields[1]
		}
		if name != "" && strings.Contains(line, "elements = {") && strings.Contains(line, element) {
			return name
		}
	}
	return ""
}

// repair makes the change and returns the time until the agent has reverted it.
func (h intervention) repair(t testing.TB, n *meshtest.Node) time.Duration {
	t.Helper()
	begun := time.Now()
	n.Run(t, h.undo[0], h.undo[1:]...)
	// A check takes a while. A pause between two would be measured.
	for end := begun.Add(meshtest.Patience * meshtest.TimeScale); ; {
		err := h.back()
		if err == nil {
			return time.Since(begun)
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not repaired: %v", h.what, err)
		}
	}
}

// foreign creates objects of other owners that resemble the agent's, and returns a function that prints them.
func foreign(t testing.TB, n *meshtest.Node) (look func() string) {
	t.Helper()
	for _, args := range [][]string{
		{"ip", "route", "add", "10.77.0.0/16", "via", "172.31.1.1", "proto", "12"},
		{"ip", "route", "add", "10.80.250.0/26", "via", "172.31.1.1", "proto", "80"},
		{"ip", "route", "add", "10.90.251.0/26", "via", "172.31.1.1", "proto", "static"},
		{"ip", "route", "add", "10.90.11.0/26", "via", "172.31.1.1", "proto", "84", "table", "77"},
		{"ip", "rule", "add", "pref", "30000", "to", "10.78.0.0/16", "table", "77"},
		{"ip", "addr", "add", "10.66.0.1/32", "dev", "lo"},
		{"nft", "add table inet tortie-not; add chain inet tortie-not nat-postrouting { type nat hook postrouting priority 90; }; " +
			"add rule inet tortie-not nat-postrouting ip saddr 10.79.0.0/16 masquerade; add table ip tortie"},
	} {
		n.Run(t, args[0], args[1:]...)
	}
	return func() string {
		var all strings.Builder
		for _, args := range [][]string{
			{"ip", "route", "show", "proto", "12"}, {"ip", "route", "show", "proto", "80"}, {"ip", "route", "show", "proto", "static"},
			{"ip", "route", "show", "table", "77"}, {"ip", "rule"}, {"ip", "-o", "addr", "show", "dev", "lo"},
			{"ip", "-o", "-4", "addr", "show", "dev", "eth0"},
			{"nft", "list", "table", "inet", "tortie-not"}, {"nft", "list", "table", "ip", "tortie"},
		} {
			all.WriteString(n.Run(t, args[0], args[1:]...))
		}
		return all.String()
	}
}

// A running agent reverts manual changes, and leaves objects of other owners. hack/bench measures how fast.
func TestDrift(t *testing.T) {
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	p := newPair(t, c, 0)
	meshtest.Start(t, p.nodes()...)
	meshtest.Settle(t, p.nodes()...)
	foreign := foreign(t, p.a)
	before := foreign()
	for _, h := range interventions(t, p.a, "10.90.10.0/26", "10.90.11.0/26", "172.31.1.11") {
		for range meshtest.Repeat(1, 5) {
			took := h.repair(t, p.a)
			t.Logf("%s: back after %v", h.what, took.Round(time.Millisecond))
			meshtest.RecordTimes(h.what+": put right", took)
		}
		if after := foreign(); after != before {
			t.Errorf("%s: objects of others were\n%s\nand are\n%s", h.what, before, after)
		}
	}
	p.a.Running(t)
}
