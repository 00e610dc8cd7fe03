package diagnose

import (
	"fmt"
	"time"
)

// firstProbes is how long an agent may take until each of few peers has answered a probe.
const firstProbes = time.Minute

// paths says what the agent's probes through the forward hooks of other nodes have shown.
func (o *Observations) paths() []Finding {
	const check = "peer-path"
	r := o.report()
	p := r.Paths
	if p == nil {
		return nil
	}
	var findings []Finding
	for _, m := range p.Missed {
		findings = append(findings, Finding{
			Check: check, About: fmt.Sprintf("%s (%s)", m.Address, m.Node), Level: Problem,
			Seen: fmt.Sprintf("probes that it should forward back are lost (%s) for %s; they came back before", m.Kind, r.Time.Sub(m.Since).Round(time.Second)),
			Why:  "packets of pods to that node's pods are most likely lost, too",
			Do:   "on that node look for a chain that drops what is forwarded (nft list ruleset; iptables -S FORWARD) and at sysctl net.ipv4.ip_forward; run node diagnose there: if it misses all other nodes, the fault is on this one",
		})
	}
	if p.Up > 0 {
		findings = append(findings, Finding{Check: check, Level: OK, Seen: fmt.Sprintf("%d nodes forward probes back", p.Up)})
	}
	if p.Unknown > 0 && r.Time.Sub(r.Started) > firstProbes {
		findings = append(findings, Finding{
			Check: check, Level: Unknown, Seen: fmt.Sprintf("%d nodes have not forwarded a probe back yet", p.Unknown),
			Do: "in a large cluster wait until each had its turn, three nodes in 10 s; else see on them that no chain drops what is forwarded, such as a policy drop (nft list ruleset; iptables -S FORWARD)",
		})
	}
	return findings
}
