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

// record is the report of a run.
type record struct{ rows []row }

func (r *record) add(another row) { r.rows = append(r.rows, another) }

// ids matches container IDs, sandbox IDs and UIDs, which differ between runs.
var ids = regexp.MustCompile(`\b[0-9a-f]{64}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)

const attackIntro = `<!-- Written by make attack; what it does is in internal/tests/cluster/attack_test.go and the files beside it. -->

# A cluster under attack

The attacks of make attack, each under the answer that it got. No pod of the other nodes lost a packet ([figures](#effect-on-others)).

A real cluster of three nodes in [the lab](lab.md), dual stack, VXLAN for IPv4, no encapsulation for IPv6. The attacker is root on node1, with
the tokens of its agent, plugins and kubelet and the node's network, and has two pods on node2, one with the runtime's default capabilities
(including NET_RAW), one without any. Meanwhile pods on master and node2 talk. After each attack the routes, tunnel neighbours and sessions of
master and node2 are compared with those before the first one. A refusal (403) is in the API server's audit log; one by a policy also in
apiserver_validating_admission_policy_check_total. Other signs are on nodes that are not the attacker's. What he can still do:
[security](security.md#a-stolen-node). Addresses and blocks are replaced by their owners' names.
`

// write writes the report, if -report names a file.
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
	var parts, answers []string
	under := map[string]string{}
	for _, w := range r.rows {
		answer := "\n## " + w.part + "\n" + cell(s, outcome(w))
		if !slices.Contains(parts, w.part) {
			parts = append(parts, w.part)
		}
		if under[answer] == "" {
			answers = append(answers, answer)
		}
		under[answer] += fmt.Sprintf("- %s: %s\n", cell(s, w.aim), code(s, w.tried))
	}
	for _, part := range parts {
		head := "\n## " + part + "\n"
		b.WriteString(head)
		for _, answer := range answers {
			if text, ok := strings.CutPrefix(answer, head); ok {
				fmt.Fprintf(&b, "\n%s:\n\n%s", text, under[answer])
			}
		}
	}
	fmt.Fprintf(&b, "\n## Effect on others\n\n%s", s.effects)
	if err := os.WriteFile(*attackReport, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// refusal finds who of the API server refuses: a policy says its name first.
var refusal = regexp.MustCompile(`^403(, tortie-fence-[a-z]+)?: `)

// outcome says what came back and where that is seen. Of a refusal, who refused is enough: docs/troubleshooting.md has the words.
func outcome(w row) string {
	switch found := refusal.FindStringSubmatch(w.answer); {
	case found == nil:
		return w.answer + "; seen: " + w.seen
	case found[1] != "":
		return "403" + found[1]
	case strings.HasPrefix(w.answer, "403: User "):
		return "403, no right"
	}
	return "403, NodeRestriction"
}

// cell returns text for the report, with the values of this run replaced by names.
func cell(s *siege, text string) string {
	const most = 240
	if text = s.named(text); len(text) > most {
		text = text[:most] + " ..."
	}
	return text
}

// code is cell for a request.
func code(s *siege, text string) string {
	text = cell(s, text)
	return "`" + strings.ReplaceAll(text, "`", "'") + "`"
}

// named replaces addresses and blocks by the names of their owners.
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
