package cluster

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
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

[attack.csv](attack.csv) has the %d attacks of make attack: what was tried, what came back, and where it is seen. The nodes that were not
attacked lost [no packet](#effect-on-others).

A real cluster of three nodes in [the lab](lab.md), dual stack, VXLAN for IPv4, no encapsulation for IPv6. The attacker is root on node1,
with its agent's, plugins' and kubelet's tokens, and has two pods on node2, one with the runtime's default capabilities (including NET_RAW),
one without any. Another attacker may write pods and policies of namespace tenant: he wants to reach SERVER, a pod of another namespace on
node2, to which his pods, a host outside and the pod on node1 send all the time, and which an administrator's policies protect. Meanwhile
pods on master and node2 talk. After each attack routes, tunnel neighbours and sessions of master and node2 are compared with those before
the first one. A refusal (403) is in the API server's audit log; one by a policy also in apiserver_validating_admission_policy_check_total.
Other signs are on nodes that are not the attacker's. Addresses and blocks are replaced by
their owners' names. [The tests of each attack](defences.csv); [what the attacker can still
do](security.md#a-stolen-node).

## Effect on others

%s`

// write writes the report, if -attack-report names a file, and the attacks as comma-separated values beside it.
func (r *record) write(t *testing.T, s *siege) {
	t.Helper()
	if len(r.rows) < 25 {
		t.Errorf("%d attacks were made, want 25 at least", len(r.rows))
	}
	if *attackReport == "" || t.Failed() {
		return
	}
	rows := [][]string{{"By", "Attack", "Tried", "Answer", "Seen"}}
	for _, w := range r.rows {
		answer, seen := outcome(w)
		rows = append(rows, []string{w.part, cell(s, w.aim), cell(s, w.tried), cell(s, answer), cell(s, seen)})
	}
	var b bytes.Buffer
	errtest.Must(t, csv.NewWriter(&b).WriteAll(rows))
	for path, text := range map[string]string{
		*attackReport: fmt.Sprintf(attackIntro, len(r.rows), s.effects),
		strings.TrimSuffix(*attackReport, ".md") + ".csv": b.String(),
	} {
		errtest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

// refusal matches the part of the API server that refuses: a policy's message begins with its name.
var refusal = regexp.MustCompile(`^403(, tortie-fence-[a-z]+)?: `)

// outcome returns the answer and where it is seen. For a refusal its source is enough: docs/troubleshooting.md has the
// messages.
func outcome(w row) (answer, seen string) {
	switch found := refusal.FindStringSubmatch(w.answer); {
	case found == nil:
		return w.answer, w.seen
	case found[1] != "":
		return "403" + found[1], ""
	case strings.HasPrefix(w.answer, "403: User "):
		return "403, no right", ""
	}
	return "403, NodeRestriction", ""
}

// cell returns text for the report, with the values of this run replaced by names.
func cell(s *siege, text string) string {
	const most = 240
	if text = s.named(text); len(text) > most {
		text = text[:most] + " ..."
	}
	return text
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
	for name, p := range s.tenants {
		with[p.Status.PodIP] = strings.ToUpper(name)
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
