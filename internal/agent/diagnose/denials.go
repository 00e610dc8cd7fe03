package diagnose

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// podNames asks the API server for the pods at both ends of denied connections. Without an answer the map lacks them.
func podNames(ctx context.Context, store *kubernetes.Store, r *nodestatus.Report) map[string]string {
	names := map[string]string{}
	if r.Policy == nil {
		return names
	}
	for _, d := range r.Policy.Denials {
		for _, text := range []string{d.Source, d.Destination} {
			addr, err := netip.ParseAddr(text)
			if _, asked := names[text]; asked || err != nil {
				continue
			}
			var found api.List[api.Pod, *api.Pod]
			if err := store.Select(ctx, "", "", "status.podIP="+addr.String(), &found); err != nil {
				return names
			}
			names[text] = ""
			for i := range found.Items {
				if p := &found.Items[i]; !p.Spec.HostNetwork {
					names[text] = p.Namespace + "/" + p.Name
				}
			}
		}
	}
	return names
}

// dns is the port of name servers.
const dns = 53

// denials shows which connections policies have denied lately. Denials are no fault, except of DNS: without names a pod
// hardly works, and its program's error seldom names the cause.
func (o *Observations) denials() (findings []Finding) {
	const check = "denials"
	r := o.report()
	if r.Policy == nil {
		return nil
	}
	var others []string
	for _, d := range r.Policy.Denials {
		text := fmt.Sprintf("%s -> %s by %s (%d packets told of)", o.named(d.Source), o.named(d.Destination)+portText(d), d.By, d.Packets)
		if d.Port != dns || d.Protocol != 6 && d.Protocol != 17 {
			others = append(others, text)
			continue
		}
		findings = append(findings, Finding{
			Check: check, About: "DNS of " + o.named(d.Source), Level: Warning, Seen: "policies deny this pod DNS: " + text,
			Why: "names do not resolve there: programs report unknown hosts, or hang",
			Do: "if it is to resolve names, allow egress to UDP and TCP port 53 of the cluster's DNS pods (namespace kube-system, label " +
				"k8s-app=kube-dns), or their ingress",
		})
	}
	seen := "policies have denied nothing in the last 5 minutes that the kernel has told of"
	if len(others) > 0 {
		seen = "in the last 5 minutes policies have denied: " + strings.Join(others, "; ") + "; node policy explain says by which rule"
	}
	return append(findings, Finding{Check: check, Level: OK, Seen: seen})
}

func (o *Observations) named(addr string) string {
	if name := o.PodNames[addr]; name != "" {
		return fmt.Sprintf("%s (%s)", name, addr)
	}
	return addr
}

func portText(d nodestatus.Denial) string {
	protocol := map[uint8]string{1: "ICMP", 6: "TCP", 17: "UDP", 58: "ICMPv6", 132: "SCTP"}[d.Protocol]
	if protocol == "" {
		protocol = fmt.Sprintf("protocol %d", d.Protocol)
	}
	if d.Port == 0 {
		return " " + protocol
	}
	return fmt.Sprintf(" port %d/%s", d.Port, protocol)
}
