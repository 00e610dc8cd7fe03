package instructions

import (
	"fmt"
	"slices"
)

// units are the counted units of a path.
var units = []string{"KiB of a stream", "round trip", "connection", "datagram"}

// Paths of internal/tests/perf: ways between pods, and suffixes of their names.
var ways = []string{"routes", "routes, IPv6", "IPIP", "VXLAN", "VXLAN, IPv6"}

const (
	noRules      = ", no rules"
	tracked      = ", conntrack alone"
	policies     = ", 1,000 policies"
	flowtable    = policies + ", flowtable"
	byHand       = "WireGuard by hand"
	byRule       = byHand + " and rule"
	manyPeers    = "1,000 WireGuard peers"
	newest       = 1          // of Kernels
	peersPerCost = 1000 / 1e9 // seconds for a thousand peers, by the instructions of one
)

// requirement is a bound of a figure that is derived from counts.
type requirement struct {
	what string
	// The bound: most, or, if that is 0, least.
	most, least float64
	// newest: it applies to kernels with IPIP in the flowtable.
	newest bool
	of     func(c costs) float64 // 0: not counted
	// why is the reason why it is not met, if it is not.
	why string
}

// costs returns the instructions of a path's unit in a table on a kernel; 0: not counted.
type costs func(path, unit string) float64

// by returns the greatest quotient of the pairs' costs, or the least if more is better; 0: not counted.
func (c costs) by(unit string, pairs [][2]string, greatest bool) (found float64) {
	for _, p := range pairs {
		a, b := c(p[0], unit), c(p[1], unit)
		if a == 0 || b == 0 {
			continue
		}
		if r := a / b; found == 0 || greatest == (r > found) {
			found = r
		}
	}
	return found
}

// worst returns the greatest quotient over all ways with one suffix and with another.
func worst(unit, with, without string) func(costs) float64 {
	var pairs [][2]string
	for _, way := range ways {
		pairs = append(pairs, [2]string{way + with, way + without})
	}
	return func(c costs) float64 { return c.by(unit, pairs, true) }
}

// throughput returns the lesser, for IPv4 and IPv6, of the quotients of a WireGuard stream by another.
func throughput(hand, handWith, agentWith string) func(costs) float64 {
	var pairs [][2]string
	for _, family := range []string{"", ", IPv6"} {
		pairs = append(pairs, [2]string{hand + family + handWith, "WireGuard" + family + agentWith})
	}
	return func(c costs) float64 { return c.by(units[0], pairs, false) }
}

// devices compares IPIP by devices for single nodes with another way, without policies and with 1,000: it returns the
// greatest cost, or else the least throughput.
func devices(unit, than string, cost bool) func(costs) float64 {
	var pairs [][2]string
	for _, rules := range []string{"", policies} {
		pair := [2]string{"IPIP" + rules + ", flowtable", than + rules}
		if !cost {
			pair[0], pair[1] = pair[1], pair[0]
		}
		pairs = append(pairs, pair)
	}
	return func(c costs) float64 { return c.by(unit, pairs, cost) }
}

// throughOwn returns the least throughput of a stream by the agent's tunnels, relative to tunnels by hand.
func throughOwn(c costs) float64 {
	return c.by(units[0], [][2]string{{"IPIP by hand", "IPIP" + noRules}, {"VXLAN by hand", "VXLAN" + noRules}}, false)
}

// quotient returns the cost of a path relative to another.
func quotient(unit, of, by string) func(costs) float64 {
	return func(c costs) float64 { return c.by(unit, [][2]string{{of, by}}, true) }
}

// Reasons of requirements that are not met.
const (
	whyTracking = "Of what the agent's rules add most is connection tracking, which masquerading, policies and kube-proxy need: a " +
		"cluster has it without them. Tried: one chain for each hook, rules in the order of their price, no hook that no setting needs, and a " +
		"flowtable, by which only short UDP costs more, and short connections on Linux 6.1"
	whyOwn = "What is left is the check of a pod's source, hooks before routing, and for the outer packets of tunnels those at input " +
		"and output: prices are in design/agent.md. Tried: chains of their own for packets of tunnels, 2 to 4 % of a round trip less"
	whyShort = "A connection enters the flowtable after its handshake, which takes work that a short one does not earn back. " +
		"Tried: entering it only later, by a count of packets, and at random; both cost more"
	whyRule = "The routes are in a table of their own, to which a rule leads, as Calico makes it: rule and mark cost 2 to 4 %, by hand, " +
		"too. Tried: nothing, as the format has them"
	whyOuter = "Each packet of WireGuard passes the hooks of the node, too, which cost more by IPv6. Tried: no connection tracking " +
		"of these packets; letting UDP pass at input before all rules, 3 % of a stream less. Without the two rules that keep them from being " +
		"tracked and translated it would be another 3 % by IPv6"
	whyElapsed = "One processor also has the kernel's handshakes with those peers that a node greets, which cost more than programming; " +
		"others have more processors. Not done: to greet peers only once all are programmed, as then nodes begin at one time, and handshakes " +
		"that cross end each other"
)

// requirements are in the order of the list.
func requirements() []requirement {
	stream, roundTrip, connection, datagram := units[0], units[1], units[2], units[3]
	return []requirement{
		{what: "IPIP by devices for single nodes by tunl0, with the same rules: the least throughput of a stream",
			least: 1.12, newest: true, of: devices(stream, "IPIP", false)},
		{what: "IPIP by devices for single nodes by tunl0, with the same rules: a round trip",
			most: 0.65, newest: true, of: devices(roundTrip, "IPIP", true)},
		{what: "IPIP by devices for single nodes by tunl0, with the same rules: a connection",
			most: 0.90, newest: true, of: devices(connection, "IPIP", true)},
		{what: "IPIP by devices for single nodes by pods without a tunnel: the least throughput of a stream",
			least: 0.98, newest: true, of: devices(stream, "routes", false)},
		{what: "The agent's tunnels by ones by hand, without rules: the least throughput of a stream", least: 0.97, of: throughOwn},
		{what: "Pods by routes, without rules, by their nodes: a stream's throughput",
			least: 0.9, of: quotient(stream, "node to node", "routes"+noRules)},
		{what: "Pods by routes, with the agent's rules, by their nodes: a stream's throughput",
			least: 0.9, of: quotient(stream, "node to node", "routes"), why: whyTracking},
		{what: "A flowtable by none, on its worst way: a stream", most: 1.01, of: worst(stream, flowtable, policies)},
		{what: "A flowtable by none, on its worst way: a round trip", most: 1.01, of: worst(roundTrip, flowtable, policies)},
		{what: "A flowtable by none, on its worst way: a connection that ends after a byte",
			most: 1.01, of: worst(connection, flowtable, policies), why: whyShort},
		{what: "A flowtable by none, on its worst way: a datagram of UDP that ends within two seconds",
			most: 1.01, of: worst(datagram, flowtable, policies), why: whyShort},
		{what: "The agent's rules by none, on their worst way: a stream", most: 1.05, of: worst(stream, "", noRules), why: whyTracking},
		{what: "The agent's rules by none, on their worst way: a round trip",
			most: 1.05, of: worst(roundTrip, "", noRules), why: whyTracking},
		{what: "The agent's rules by none, on their worst way: a round trip, with 1,000 policies and flowtable",
			most: 1.05, of: worst(roundTrip, flowtable, noRules), why: whyOwn},
		{what: "The agent's rules by conntrack alone, on their worst way: a stream",
			most: 1.05, of: worst(stream, "", tracked), why: whyOwn},
		{what: "The agent's rules by conntrack alone, on their worst way: a round trip",
			most: 1.05, of: worst(roundTrip, "", tracked), why: whyOwn},
		{what: "WireGuard by one by hand with a rule and a table: the least throughput of a stream",
			least: 0.97, of: throughput(byRule, "", noRules)},
		{what: "WireGuard by one by hand: the least throughput of a stream",
			least: 0.97, of: throughput(byHand, "", noRules), why: whyRule},
		{what: "WireGuard with the agent's rules by one by hand with rule and conntrack: the least throughput of a stream",
			least: 0.97, of: throughput(byRule, tracked, ""), why: whyOuter},
		{what: "1,000 WireGuard peers: seconds of the agent, if an instruction takes a nanosecond",
			most: 1, of: func(c costs) float64 { return c(manyPeers+" programmed", "peer") * peersPerCost }},
		{what: "1,000 WireGuard peers: seconds until all are programmed, on one processor",
			most: 1, of: func(c costs) float64 { return c(manyPeers+", with handshakes meanwhile", "peer") * peersPerCost }, why: whyElapsed},
	}
}

func (r requirement) met(value float64) bool {
	return value == 0 || r.most > 0 && value <= r.most || r.most == 0 && value >= r.least
}

func (r requirement) bound() string {
	if r.most > 0 {
		return fmt.Sprintf("≤ %.2f", r.most)
	}
	return fmt.Sprintf("≥ %.2f", r.least)
}

// Required returns the requirements on the counted instructions, by kernel, with a reason for each that is not met.
func Required(root string) ([][]string, error) {
	t, err := load(root, File)
	if err != nil {
		return nil, err
	}
	rows := [][]string{{"Requirement", "Asked", t.releases[0], t.releases[1], "Why it is not met"}}
	for _, r := range requirements() {
		line, counted := []string{r.what, r.bound(), "", "", ""}, false
		for i := range Kernels {
			value := 0.0
			if i == newest || !r.newest {
				value = r.of(func(path, unit string) float64 { return t.at(key{path, unit}).on[i].instructions })
			}
			if value == 0 {
				continue
			}
			counted, line[2+i] = true, fmt.Sprintf("%.3f", value)
			if r.met(value) {
				continue
			}
			if line[4] = r.why; r.why == "" {
				return nil, fmt.Errorf("%s: %.3f, %s is asked, and there is no reason", r.what, value, r.bound())
			}
		}
		if counted {
			rows = append(rows, line)
		}
	}
	return rows, nil
}

// at returns the row of a key; an empty one if there is none.
func (t *Table) at(k key) row {
	if i := slices.IndexFunc(t.rows, func(r row) bool { return r.key == k }); i >= 0 {
		return t.rows[i]
	}
	return row{}
}
