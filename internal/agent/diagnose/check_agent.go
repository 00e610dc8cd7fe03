package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// overdue is the age of the last pass beyond which the agent hangs: a working agent makes a pass every 30 s, however
// little happens.
const overdue = 2 * time.Minute

// Check makes findings from observations. It is pure.
func Check(o *Observations) []Finding {
	findings := o.agent()
	if !o.Foreign {
		findings = slices.Concat(findings, o.mesh(), o.paths(), o.service(), o.duplicates(), o.denials(), o.definitions(),
			o.pools(), o.space(), o.forwarding(), o.forwardHook(), o.reversePath(), o.kernel(), o.cniConfigs(), o.otherNetworks(),
			o.foreignRoutes(), o.managers())
	}
	for _, p := range o.Peers {
		findings = append(findings, o.peer(p)...)
	}
	return findings
}

// agent checks the agent's own report.
func (o *Observations) agent() []Finding {
	const check = "agent"
	r := o.Agent
	if r == nil {
		return []Finding{{
			Check: check, Level: Problem, Seen: fmt.Sprint(o.AgentErr),
			Why: "routes, addresses and rules stay, but nothing follows the cluster any more",
			Do: "look at its log: kubectl -n kube-system logs -l app.kubernetes.io/name=tortie -c node; peers that are to be probed meanwhile can " +
				"be named: node diagnose 10.0.0.7",
		}}
	}
	findings := []Finding{{Check: check, Level: OK, Seen: "answers, and is ready"}}
	f := &findings[0]
	switch age := r.Time.Sub(r.LastPass); {
	case age > overdue:
		f.Level, f.Seen = Problem, fmt.Sprintf("its last pass ended %s ago", age.Round(time.Second))
		f.Why, f.Do = "it hangs: nothing follows the cluster any more", "its liveness probe restarts it; if it does not, delete the pod"
	case !r.Ready:
		f.Level, f.Seen = Problem, "is not ready: "+orNothing(r.LastError, "its first pass has not ended")
		f.Why, f.Do = "pods are not scheduled to this node", "the error says what hinders it"
	case r.LastError != "":
		f.Level, f.Seen = Problem, "its last pass failed: "+r.LastError
		f.Why, f.Do = "this node is not as the cluster wants it", "the error says what hinders it; it tries again"
	}
	for _, p := range r.Problems {
		findings = append(findings, problem(p, r.ProblemReasons[p]))
	}
	for _, f := range r.FieldsWithoutEffect {
		findings = append(findings, Finding{
			Check: "fields", Level: OK, About: f.Kind + " " + f.Name, Seen: "without effect: " + strings.Join(f.Fields, ", "),
			Why: "Tortie keeps these fields of Calico's and does not act on them", Do: "remove them, unless nodes run Calico",
		})
	}
	return append(findings, o.plugins()...)
}

// severe are the reasons of problems with which the network lacks what the operator configured: encryption, policies,
// settings, an address of its own. PolicyLeftToOther is none, as the other engine enforces. Nor is PolicyUnsupported:
// pods that need the missing part are closed, which is PolicyNotInForce.
var severe = []string{
	"NoWireGuard", "NotEncrypted", "NoIPIP", "NoVXLAN", "NoSourceCheck", "InvalidConfiguration", "InvalidPeer", "InvalidFilter",
	"DuplicateAddress", "PolicyNotInForce", "PolicyBypassed", "PolicyLocksOut",
}

// problem makes a finding of an agent's problem, with the cause and the remedy of the Event with that reason.
func problem(text, reason string) Finding {
	f := Finding{Check: "problem", About: reason, Level: Warning, Seen: text,
		Why: "what the agent cannot use it leaves out, and everything else goes on", Do: "correct what it names"}
	if slices.Contains(severe, reason) {
		f.Level = Problem
	}
	if cause, remedy, ok := strings.Cut(eventHelp[reason], ": "); ok {
		f.Why, f.Do = cause, remedy
	}
	for _, command := range []string{"kubectl ", "helm "} { // the text has its own remedy
		if seen, remedy, ok := strings.Cut(text, ": "+command); ok {
			f.Seen, f.Do = seen, command+remedy
		}
	}
	return f
}

func orNothing(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// plugins checks what the agent does for the CNI plugins.
func (o *Observations) plugins() []Finding {
	r := o.Agent
	told := Finding{Check: "facts", Level: OK, Seen: "the plugins are told about the cluster"}
	switch {
	case r.Facts == nil && r.Time.Sub(r.Started) > facts.MaxAge:
		told.Level, told.Seen = Warning, "the plugins have not been told anything since the agent started"
	case r.Facts != nil && !r.Facts.Usable:
		told.Level, told.Seen = Warning, fmt.Sprintf("what the plugins were told is %s old", r.Time.Sub(r.Facts.Written).Round(time.Second))
	}
	if told.Level != OK {
		told.Why, told.Do = "they ask the API server for each pod, which takes longer",
			"see that the API server answers this node; the agent's log and its problems say what hinders it"
	}
	left := Finding{Check: "journal", Level: OK, Seen: "nothing is left to release"}
	if r.Journal.Entries > 0 {
		left.Level, left.Seen = Warning, fmt.Sprintf("addresses of %d containers are still to be released", r.Journal.Entries)
		left.Why, left.Do = "no other pod gets these addresses", "see that the API server answers this node"
		if r.Journal.LastError != "" {
			left.Seen += ": " + r.Journal.LastError
		}
	}
	return []Finding{told, left}
}

// largeMesh is the number of nodes from which a full mesh costs more than it is worth.
const largeMesh = 100

// mesh checks the number of sessions of a full mesh. A small mesh is no finding, nor one that reflectors will replace.
func (o *Observations) mesh() []Finding {
	r := o.report()
	nodes := map[string]bool{}
	for _, p := range r.Peers {
		if p.Kind == "mesh" && p.Node != "" {
			nodes[p.Node] = true
		}
	}
	if len(nodes) <= largeMesh || r.Reflection != nil {
		return nil
	}
	return []Finding{{
		Check: "mesh", Level: Warning, Seen: fmt.Sprintf("this node has sessions with %d others, each with each", len(nodes)),
		Why: "their number grows with the square of the nodes, and so does what a restart of many costs",
		Do:  "let kube-controllers make route reflectors (Helm: bgp.automaticReflectors=true), or annotate some nodes as such (docs/bgp.md)",
	}}
}
