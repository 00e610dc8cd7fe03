package diagnose

import (
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
)

// firstProbes is how long an agent may take until each of few peers has answered a probe.
const firstProbes = time.Minute

// paths reports the results of the agent's probes through the forward hooks of other nodes.
func (o *Observations) paths() []Finding {
	r := o.report()
	return append(pathsOf(r, r.Paths, "IPv4", "iptables -S FORWARD", "net.ipv4.ip_forward"),
		pathsOf(r, r.Paths6, "IPv6", "ip6tables -S FORWARD", "net.ipv6.conf.all.forwarding")...)
}

func pathsOf(r *nodestatus.Report, p *nodestatus.Paths, family, chain, forwarding string) (findings []Finding) {
	const check = "peer-path"
	if p == nil {
		return nil
	}
	for _, m := range p.Missed {
		findings = append(findings, Finding{
			Check: check, About: fmt.Sprintf("%s (%s)", m.Address, m.Node), Level: Problem,
			Seen: fmt.Sprintf("probes that it should forward back are lost (%s) for %s; they came back before", m.Kind,
				r.Time.Sub(m.Since).Round(time.Second)),
			Why: "packets of pods to that node's pods are most likely lost, too",
			Do: "on that node look for a chain that drops what is forwarded (nft list ruleset; " + chain + ") and at sysctl " + forwarding +
				"; run node diagnose there: if it misses all other nodes, the fault is on this one",
		})
	}
	if p.Up > 0 {
		findings = append(findings, Finding{Check: check, Level: OK, Seen: fmt.Sprintf("%d nodes forward probes of %s back", p.Up, family)})
	}
	if p.Unknown > 0 && r.Time.Sub(r.Started) > firstProbes {
		findings = append(findings, Finding{
			Check: check, Level: Unknown, Seen: fmt.Sprintf("%d nodes have not forwarded a probe of %s back yet", p.Unknown, family),
			Do: "in a large cluster wait until each had its turn, three nodes in 10 s; else see on them that no chain drops what is forwarded, " +
				"such as a policy drop (nft list ruleset; " + chain + ")",
		})
	}
	return findings
}
