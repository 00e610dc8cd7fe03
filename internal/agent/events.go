package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

const (
	// patience is how long a fault that often cures itself may last before it is reported.
	patience = time.Minute
	// staleFacts is the age from which facts are reported. A restart of the API server is shorter.
	staleFacts = 4 * facts.MaxAge
)

// Recorder reports to operators, as Events, what they must act on; internal/cluster/events has the real one. It is
// called with the same text while a problem lasts, and writes it seldom. It never waits.
type Recorder interface {
	Warn(about api.ObjectReference, reason, message string)
	// WarnCommon is Warn for what the agents of all nodes find about an object that they all see.
	WarnCommon(about api.ObjectReference, reason, message string)
	// WarnOfPast reports a past problem, once, as soon as the API server accepts it.
	WarnOfPast(about api.ObjectReference, reason, message string)
	// Unwritten reports whether a text of WarnOfPast or Note is still to be written.
	Unwritten(about api.ObjectReference, reason string) bool
	// Note reports a change that is no problem, as WarnOfPast does.
	Note(about api.ObjectReference, reason, message string)
	// Run writes until ctx ends.
	Run(ctx context.Context) error
}

// eventReporter turns the agent's problems into Events. It belongs to the goroutine of Run.
type eventReporter struct {
	to      Recorder
	node    string
	failing time.Time       // since when passes fail
	refused time.Time       // since when paths are refused
	stuck   time.Time       // since when the journal is stuck
	open    time.Time       // since when policies fail
	full    time.Time       // since when file systems are full
	down    map[string]bool // BGPPeers reported as down
	cutOff  bool            // no session of the mesh was up
}

// report writes Events about the problems after a pass.
func (t *eventReporter) report(now time.Time, k *seen, err error) {
	if t.to == nil {
		return
	}
	self := k.self()
	var known []error
	for _, leaf := range leaves(err) {
		if _, _, ok := classify(self, leaf); ok {
			known = append(known, leaf)
		} else if lasts(&t.failing, now, true) {
			t.to.Warn(self, "NotAsItShouldBe", leaf.Error())
		}
	}
	t.warnAll(self, known)
	if err == nil {
		t.failing = time.Time{}
	}
	for _, p := range k.peers {
		if p.HeldUntil.After(now) {
			t.to.Warn(k.peerNode(p), "PeerHeldDown", fmt.Sprintf("%s keeps its BGP session with %s closed: %s", k.node, p.Addr, whyDown(p)))
		}
	}
	if lasts(&t.refused, now, desired.Objections(k.routes.refused) > 0) { // a block that moves is refused for a moment
		t.reportRefused(k)
	}
	t.reportPeers(now, k)
	t.reportPlugins(now, k, self)
}

// reportRefused warns once per peer that announces refused paths.
func (t *eventReporter) reportRefused(k *seen) {
	var told []string
	for _, r := range k.routes.refused {
		peer := addrText(r.Path.From)
		if r.Pending || r.Usual || slices.Contains(told, peer) {
			continue
		}
		told = append(told, peer)
		about := k.peerNode(bgp.PeerStatus{Addr: r.Path.From})
		t.to.Warn(about, "PathRefused",
			fmt.Sprintf("%s does not use what BGP peer %s announces, %s via %s among it: %s", k.node, peer, r.Path.Prefix, r.Path.NextHop, r.Why))
	}
}

// reportPlugins warns about problems of the plugins.
func (t *eventReporter) reportPlugins(now time.Time, k *seen, self api.ObjectReference) {
	if f := k.facts; f != nil && now.Sub(f.Written) > staleFacts {
		t.to.Warn(self, "FactsStale",
			fmt.Sprintf("what the CNI plugins are told of the cluster is of %s: they ask the API server for each pod, which takes longer",
				f.Written.UTC().Format(time.RFC3339)))
	}
	if lasts(&t.stuck, now, k.journal.Entries > 0 && k.journal.LastError != "") {
		t.to.Warn(self, "JournalStuck", "addresses of deleted pods cannot be released: "+firstLine(k.journal.LastError))
	}
}

// reportSpace warns about full file systems, which text describes.
func (t *eventReporter) reportSpace(now time.Time, text string) {
	if t.to != nil && lasts(&t.full, now, text != "") {
		t.to.Warn(desired.NodeObject(t.node), "NoSpace", text)
	}
}

// reportPolicies warns why policies are not in force. kube-controllers, which see all policies, report faults of a
// policy.
func (t *eventReporter) reportPolicies(now time.Time, w *policies.Worker) {
	if t.to == nil || w == nil {
		return
	}
	k := w.Seen()
	if k.IPVS {
		t.to.Warn(desired.NodeObject(t.node), "PolicyBypassed", policies.IPVSText)
	}
	if k.LockedOut {
		t.to.Warn(desired.NodeObject(t.node), "PolicyLocksOut", k.Lockout())
	}
	if text := k.LeftTo(); text != "" {
		t.to.Warn(desired.NodeObject(t.node), "PolicyLeftToOther", text)
	}
	if texts := k.Unsupported(); len(texts) > 0 {
		t.to.Warn(desired.NodeObject(t.node), "PolicyUnsupported", events.Join(texts))
	}
	err := k.Unmet()
	if lasts(&t.open, now, err != nil) {
		t.to.Warn(desired.NodeObject(t.node),
			"PolicyNotInForce", fmt.Sprintf("policies have not been brought into force since %s: %v", t.open.UTC().Format(time.RFC3339), err))
	}
}

// lasts records in since when so became true, and reports whether it has lasted for patience.
func lasts(since *time.Time, now time.Time, so bool) bool {
	switch {
	case !so:
		*since = time.Time{}
	case since.IsZero():
		*since = now
	}
	return so && now.Sub(*since) >= patience
}

// classify returns the object that an error is about and the Event's reason; ok is false for errors that may be
// transient.
func classify(self api.ObjectReference, err error) (about api.ObjectReference, reason string, ok bool) {
	var p *desired.Problem
	var c *desired.Concern
	var taken *bgp.ListenError
	switch {
	case errors.As(err, &p):
		return p.About, p.Reason, p.Reason != ""
	case errors.As(err, &c):
		return self, c.Reason, true
	case errors.As(err, &taken):
		return self, "BGPPortTaken", true
	case errors.Is(err, routes.ErrForeign):
		return self, "ForeignRoute", true
	case errors.Is(err, ipip.ErrNoIPIP):
		return self, "NoIPIP", true
	case errors.Is(err, vxlan.ErrNoVXLAN):
		return self, "NoVXLAN", true
	case errors.Is(err, wireguard.ErrNoWireGuard):
		return self, "NoWireGuard", true
	case errors.Is(err, guard.ErrNoSourceCheck):
		return self, "NoSourceCheck", true
	case errors.Is(err, ipam.ErrExhausted), errors.Is(err, ipam.ErrBlockLimit), errors.Is(err, ipam.ErrNoPool):
		return self, "NoTunnelAddress", true
	}
	return self, "", false
}

// leaves splits joined errors. An error that wraps several and has a text of its own stays whole.
func leaves(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || err.Error() != strings.Join(texts(joined.Unwrap()), "\n") {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, leaves(e)...)
	}
	return all
}

func (k *seen) self() api.ObjectReference { return desired.NodeObject(k.node) }

// peerNode returns the Node of a peer; this Node if the peer is no known node.
func (k *seen) peerNode(p bgp.PeerStatus) api.ObjectReference {
	if name := k.peerName(p); name != "" {
		return desired.NodeObject(name)
	}
	return k.self()
}

// peerName returns the name of a peer's node; empty if the peer is no known node.
func (k *seen) peerName(p bgp.PeerStatus) string {
	if k.snapshot == nil {
		return ""
	}
	if m, ok := k.snapshot.MemberAt(p.Addr); ok {
		return m.Name
	}
	return ""
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// reportProblems writes Events about objects, each by its own name, and about this node.
func (t *eventReporter) reportProblems(problems []error) {
	if t.to != nil {
		t.warnAll(desired.NodeObject(t.node), problems)
	}
}

// warnAll writes one Event for each object and reason: the Recorder keeps one text of each.
func (t *eventReporter) warnAll(self api.ObjectReference, problems []error) {
	type event struct {
		about  api.ObjectReference
		reason string
	}
	var order []event
	same := map[event][]error{}
	for _, err := range problems {
		if about, reason, ok := classify(self, err); ok {
			e := event{about, reason}
			if same[e] == nil {
				order = append(order, e)
			}
			same[e] = append(same[e], err)
		}
	}
	for _, e := range order {
		t.warn(e.about, e.reason, same[e])
	}
}

// reasonsOf returns the reasons of the Events about problems, by the problems' texts.
func (t *eventReporter) reasonsOf(problems []error) map[string]string {
	reasons := map[string]string{}
	for _, err := range problems {
		if _, reason, ok := classify(desired.NodeObject(t.node), err); ok {
			reasons[err.Error()] = reason
		}
	}
	return reasons
}

// warn writes a Warning; one about a cluster object is shared by all agents.
func (t *eventReporter) warn(about api.ObjectReference, reason string, errs []error) {
	var p *desired.Problem
	if errors.As(errs[0], &p) {
		t.to.WarnCommon(about, reason, events.Join(texts(errs)))
		return
	}
	t.to.Warn(about, reason, events.Join(texts(errs)))
}
