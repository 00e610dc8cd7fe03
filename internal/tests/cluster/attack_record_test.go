package cluster

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var attackReport = flag.String("attack-report", "", "file into which TestAttack writes what was tried, what came back and where it is seen")

// row is one attack.
type row struct{ part, aim, tried, answer, seen string }

// record is what a run says of itself.
type record struct{ rows []row }

func (r *record) add(another row) { r.rows = append(r.rows, another) }

// ids are of containers and sandboxes, and other things without a meaning.
var ids = regexp.MustCompile(`\b[0-9a-f]{64}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)

const attackIntro = `<!-- Written by make attack; what it does is in internal/tests/cluster/attack_test.go and the files beside it. -->

# A cluster under attack

A real cluster of three nodes in [the lab](lab.md), dual stack, VXLAN for IPv4 and no encapsulation for IPv6. Somebody is root on node1: he has the
tokens of its agent, plugins and kubelet from where they lie, and the node's network. He also has two pods on node2, one with the capabilities
that the runtime gives (NET_RAW among them), one without any. Meanwhile pods on master and node2 talk to each other. After each attack the routes,
tunnel neighbours and sessions of master and node2 are compared with what they were before the first. The last column says where an attack
is seen: in the API server's refusal (403), which its metric apiserver_validating_admission_policy_check_total counts where a policy refuses, or on a
node that is not the attacker's. Rows that name neither say what is so. What he can do all the same is in
[security](security.md#a-stolen-node).

Addresses and blocks are shown by whose they are.
`

// write writes the report, if one is asked for.
func (r *record) write(t *testing.T, s *siege) {
	t.Helper()
	if len(r.rows) < 25 {
		t.Errorf("%d attacks were made, want 25 at least", len(r.rows))
	}
	if *attackReport == "" || t.Failed() {
		return
	}
	var b bytes.Buffer
	b.WriteString(attackIntro)
	part := ""
	for i, w := range r.rows {
		if w.part != part {
			part = w.part
			fmt.Fprintf(&b, "\n## %s\n\n| | Attack | Tried | Answer | Seen |\n|---|---|---|---|---|\n", part)
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s |\n", i+1, cell(s, w.aim), code(s, w.tried), cell(s, w.answer), cell(s, w.seen))
	}
	fmt.Fprintf(&b, "\n## What the others noticed\n\n%s", s.noticed)
	if err := os.WriteFile(*attackReport, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cell is text in a table, with names in place of what another run has others of.
func cell(s *siege, text string) string {
	const most = 240
	if text = s.named(text); len(text) > most {
		text = text[:most] + " ..."
	}
	return strings.ReplaceAll(text, "|", `\|`)
}

// code is the same for what was sent.
func code(s *siege, text string) string {
	text = cell(s, text)
	return "`" + strings.ReplaceAll(text, "`", "'") + "`"
}

// named replaces addresses and blocks by whose they are.
func (s *siege) named(text string) string {
	with := map[string]string{}
	for _, node := range nodes {
		m := s.is[node]
		for _, b := range m.blocks {
			with[b.String()] = "BLOCK(" + node + ")"
			with[strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(b.String())] = "BLOCK(" + node + ")"
		}
		with[m.end], with[m.mac] = "TUNNEL("+node+")", "MAC("+node+")"
		with[s.pod[node].V4.String()], with[s.pod[node].V6.String()] = "POD("+node+")", "POD6("+node+")"
		with[m.address], with[m.address6] = "NODE("+node+")", "NODE6("+node+")"
	}
	with[s.web.Status.PodIP], with[s.talker[thief]] = "WEB", "traffic"
	with[lastOf(s.block(victim)).String()], with[netip.PrefixFrom(s.block(victim).Addr(), 27).String()] = "FREE(node2)", "HALF-BLOCK(node2)"
	keys := make([]string, 0, len(with))
	for k := range with {
		if k != "" {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	for _, k := range keys {
		text = strings.ReplaceAll(text, k, with[k])
	}
	return ids.ReplaceAllString(text, "ID")
}
