package policies

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/app/cniconf"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
)

// Seen is the state that a Worker reports.
type Seen struct {
	Mode config.PolicyMode
	// Keeps: established connections that a changed policy forbids are left alone.
	Keeps bool
	// Enforcing: a Ruleset of this process is in force. Otherwise Reason is one of Reasons, and Why explains it.
	Enforcing   bool
	Reason, Why string
	// IPVS: kube-proxy uses IPVS; IPVSText describes the effect on policies.
	IPVS bool
	// Unproven are links with the names of other engines' links, but without their configuration.
	Unproven []string

	// Policed and Open are the numbers of this node's pods with and without a policy.
	Policed, Open int
	Policies      int
	Programs      int
	Members       int // addresses of pods in sets
	// Invalid has the problems of policies that are in force as far as they can be read; LeftOut has the problems of
	// policies of which an earlier version is in force, or none.
	Invalid, LeftOut map[policy.ID][]string
	// NotTried has the problems of staged policies.
	NotTried map[policy.ID][]string
	// Unlisted are policies that deny too much until the API server has listed the objects that they name.
	Unlisted []policy.ID

	// LockedOut: policies of host endpoints deny this node the API server, so the way to it is kept open.
	LockedOut bool
	// RolledBack: the former policies of host endpoints are in force instead.
	RolledBack bool
	// SameLink names pods that are closed because they share a link, TooLarge the policies that close all pods of a
	// namespace. Closed is the number of this node's pods closed by either.
	SameLink []string
	TooLarge []policy.ID
	Closed   int
	// DeafSince is the time since when watches of objects that policies depend on fail; zero: none fails. Deaf is the
	// error, once that has lasted for deafTime.
	DeafSince time.Time
	Deaf      error

	Applied time.Time     // when the kernel was last changed or compared
	Took    time.Duration // duration of that
	Stats   netpol.Stats  // what was done then
	Applies uint64        // number of times
	Passes  uint64        // number of passes
	// Compiles is the number of full compilations: pods that use existing programs need none.
	Compiles uint64
	Failed   uint64 // failed passes
	Err      error  // of the last pass
	Refused  error  // rules that the kernel refuses: their pods are closed
	Lacks    error  // kernel features for policies that are missing, or why that is not known
	// NoReject: FelixConfiguration asks for Reject, which the kernel lacks.
	NoReject bool
	Waiting  time.Time // since when a change waits to be in force; zero: none does
	Ended    uint64    // ended connections
}

// Seen returns the current state.
func (w *Worker) Seen() Seen {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.seen
}

// InPlace reports whether rules of another engine are no longer needed: policies are in force, or this agent must not
// enforce any.
func (w *Worker) InPlace() bool { return w.NotInPlace() == nil }

// NotInPlace returns the reason if InPlace is false, otherwise nil. Policies that IPVS bypasses do not count as in
// force unless TORTIE_POLICY is on.
func (w *Worker) NotInPlace() error {
	s := w.Seen()
	switch {
	case s.IPVS && s.Mode != config.PolicyOn:
		return errors.New(IPVSText)
	case s.Applied != (time.Time{}), s.Reason != reasonStarting && s.Reason != reasonFailing && s.Reason != "":
		return nil
	}
	return errors.New("policies are not in force yet")
}

// Placed returns a channel that is signalled when InPlace changes; nil for a nil Worker.
func (w *Worker) Placed() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.placed
}

// Is reports whether a reason holds for which policies are not, or not fully, enforced.
func (s *Seen) Is(reason string) bool { return s.Reason == reason || s.IPVS && reason == reasonIPVS }

// note changes the reported state.
func (w *Worker) note(change func(*Seen)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.seen)
}

// report updates the state after a pass, and logs changes.
func (w *Worker) report(err error) {
	before := w.Seen()
	w.note(func(s *Seen) {
		s.Passes++
		s.Lacks = w.lacks
		s.NoReject = w.noReject && w.handling != nil && w.handling.Reject
		s.Err, s.Refused, s.Waiting = err, w.refused, w.waiting
		s.hear(w.unheard(), time.Now())
		if err != nil {
			s.Failed++
		}
		w.describe(s)
		s.Enforcing, s.Reason, s.Why = w.standing(err)
	})
	now := w.Seen()
	if inPlace := w.InPlace(); inPlace != w.inPlace {
		w.inPlace = inPlace
		wait.Signal(w.placed)
	}
	if now.Enforcing && !before.Enforcing {
		w.Log.Info("policies are in force", "pods", now.Policed, "pods without policy", now.Open, "policies", now.Policies,
			"programs", now.Programs)
	}
	w.logProblems(now.Problems())
}

// unheard returns the error of watches on which anything depends that is in force, or will be.
func (w *Worker) unheard() error {
	if w.decision.rival != (rival{}) {
		return nil
	}
	return w.model.view.Err
}

// deafTime is how long watches may fail before that is a problem: an API server that restarts is none.
const deafTime = time.Minute

// hear updates DeafSince and Deaf by the error of the watches.
func (s *Seen) hear(err error, now time.Time) {
	if s.Deaf = nil; err == nil {
		s.DeafSince = time.Time{}
		return
	}
	if s.DeafSince.IsZero() {
		s.DeafSince = now
	}
	if now.Sub(s.DeafSince) >= deafTime {
		s.Deaf = fmt.Errorf("changes of policies and pods since %s are not in force, as watches of the API server fail: %w",
			s.DeafSince.UTC().Format(time.RFC3339), err)
	}
}

// Unmet returns what keeps policies from being in force, or closes pods that the policies do not close; nil: nothing.
// Invalid policies are left out.
func (s *Seen) Unmet() error {
	errs := []error{s.Err, s.Refused, s.Deaf}
	for _, text := range s.SameLink {
		errs = append(errs, errors.New(text))
	}
	for _, id := range s.TooLarge {
		errs = append(errs, fmt.Errorf("%s: %s", id, policy.TooLargeText))
	}
	return errors.Join(errs...)
}

// standing returns whether policies are enforced, and if not, the reason.
func (w *Worker) standing(err error) (enforcing bool, reason, why string) {
	switch {
	case w.decision.rival != (rival{}):
		return false, w.decision.rival.reason, w.decision.rival.text
	case w.synced:
		return true, "", ""
	case err != nil:
		return false, reasonFailing, err.Error()
	case w.model.view.Err != nil:
		return false, reasonStarting, "the API server has not told everything yet, what an earlier agent left is in force: " +
			w.model.view.Err.Error()
	}
	return false, reasonStarting, "the API server has not told everything yet, what an earlier agent left is in force"
}

// describe updates the figures of the Ruleset. The caller holds the lock.
func (w *Worker) describe(s *Seen) {
	s.Policed, s.Open, s.Programs, s.Members, s.TooLarge = 0, 0, 0, 0, nil
	s.Closed = w.model.withSameLink
	s.Policies, s.Invalid, s.LeftOut, s.SameLink = len(w.model.Policies), w.model.Invalid, w.model.LeftOut, w.model.sameLink
	s.NotTried = w.model.NotTried
	if s.Unlisted = nil; w.synced && w.model.late(time.Now()) {
		s.Unlisted = w.model.closed
	}
	s.LockedOut, s.RolledBack = w.inForce.trial != nil && w.inForce.trial.lockedOut, w.inForce.back
	if w.inForce.rules == nil {
		return
	}
	s.Programs, s.Members, s.TooLarge = len(w.inForce.rules.Programs), len(w.inForce.rules.Members), w.inForce.rules.TooLarge
	for link, e := range w.inForce.rules.Endpoints {
		if w.inForce.rules.Closes(link) {
			s.Closed++
		}
		if e.Programs == [2]string{} {
			s.Open++
		} else {
			s.Policed++
		}
	}
}

func (w *Worker) logProblems(now []string) {
	logged := make(map[string]bool, len(now))
	for _, text := range now {
		if logged[text] = true; !w.logged[text] {
			w.Log.Warn("policies need attention", "policy", text)
		}
	}
	w.logged = logged
}

// tell calls Decided.
func (w *Worker) tell(stayOut bool) {
	if w.Decided != nil {
		w.Decided(stayOut)
	}
}

// mostTold bounds the texts of Problems: a tenant may write 10,000 objects that cannot be read.
const mostTold = 1000

// Problems returns the problems as text, for people.
func (s *Seen) Problems() (texts []string) {
	if s.Reason != reasonOff && s.Reason != reasonStarting && s.Why != "" {
		texts = append(texts, s.notEnforced())
	}
	if s.Err != nil && s.Enforcing {
		texts = append(texts, s.before())
	}
	if s.Refused != nil {
		texts = append(texts, s.Refused.Error())
	}
	if s.Deaf != nil {
		texts = append(texts, s.Deaf.Error())
	}
	if s.Lacks != nil {
		texts = append(texts, strings.Split(s.Lacks.Error(), "\n")...)
	}
	if s.NoReject {
		texts = append(texts, noRejectText)
	}
	if s.LockedOut {
		texts = append(texts, s.Lockout())
	}
	texts = append(texts, s.SameLink...)
	if s.IPVS {
		texts = append(texts, IPVSText)
	}
	for _, link := range s.Unproven {
		texts = append(texts, fmt.Sprintf(unprovenText, link))
	}
	for _, part := range []struct {
		what string
		of   map[policy.ID][]string
	}{{"is in force as far as it can be read", s.Invalid},
		{"cannot be read: its last version that could is in force, if there was one", s.LeftOut},
		{"is tried out as far as it can be read", s.NotTried}} {
		for _, id := range slices.SortedFunc(maps.Keys(part.of), func(a, b policy.ID) int { return strings.Compare(a.String(), b.String()) }) {
			if len(texts) >= mostTold {
				return append(texts, "there are more problems: correct these first")
			}
			for _, problem := range part.of[id] {
				texts = append(texts, fmt.Sprintf("%s %s: %s", id, part.what, problem))
			}
		}
	}
	for _, id := range s.Unlisted {
		texts = append(texts, fmt.Sprintf("%s denies everything where it denies or passes on nodes or pods, and allows nothing where it allows "+
			"all but these, as the API server has not listed them yet", id))
	}
	return texts
}

func (s *Seen) notEnforced() string {
	return "NetworkPolicies are not enforced by this agent: " + s.Why
}

func (s *Seen) before() string {
	return fmt.Sprintf("policies are in force as they were before: %v", s.Err)
}

// LeftTo returns a text about the other engine that enforces on this node; empty: none.
func (s *Seen) LeftTo() string {
	if !slices.Contains([]string{reasonFelix, reasonCilium, reasonAntrea}, s.Reason) {
		return ""
	}
	return s.notEnforced()
}

// Unsupported returns texts about the parts of policies that the kernel lacks, without those that are not known yet.
func (s *Seen) Unsupported() (texts []string) {
	if !errors.Is(s.Lacks, netpol.ErrLacks) && !errors.Is(s.Lacks, netpol.ErrNoLog) {
		return nil
	}
	return slices.DeleteFunc(strings.Split(s.Lacks.Error(), "\n"),
		func(text string) bool { return strings.HasPrefix(text, netpol.ErrNotProbed.Error()) })
}

// EventReasons returns the reasons of Events about problems, by their texts.
func (s *Seen) EventReasons() map[string]string {
	reasons := map[string]string{IPVSText: "PolicyBypassed", s.Lockout(): "PolicyLocksOut"}
	if text := s.LeftTo(); text != "" {
		reasons[text] = "PolicyLeftToOther"
	}
	if s.Reason == reasonFailing {
		reasons[s.notEnforced()] = "PolicyNotInForce"
	}
	if s.Err != nil {
		reasons[s.before()] = "PolicyNotInForce"
	}
	for _, err := range []error{s.Refused, s.Deaf} {
		if err != nil {
			reasons[err.Error()] = "PolicyNotInForce"
		}
	}
	for _, text := range s.SameLink {
		reasons[text] = "PolicyNotInForce"
	}
	for _, text := range s.Unsupported() {
		reasons[text] = "PolicyUnsupported"
	}
	return reasons
}

// Lockout returns the finding of the lockout guard as text.
func (s *Seen) Lockout() string {
	follows := "to which alone the way stays open"
	if s.RolledBack {
		follows = "so that those before them are in force"
	}
	return "policies of host endpoints deny this node the API server, " + follows +
		": change these policies, or add its port to failsafeOutboundHostPorts"
}

const noRejectText = "packets that policies deny are dropped without an answer, although FelixConfiguration asks for Reject: the kernel " +
	"lacks it (modules nft_reject, nft_reject_inet)"

// unprovenText describes a link with the name of another engine's link.
const unprovenText = "link %s is there, as where another engine enforces, but no configuration of that engine is in " + cniconf.Dir +
	", and a pod with CAP_NET_ADMIN can make such a link: policies stay in force. If the engine enforces here, set TORTIE_POLICY=off " +
	"(policy.enabled=false), else remove the link (ip link delete %[1]s) and look which pods have CAP_NET_ADMIN"

// IPVSText describes the effect of IPVS on policies.
const IPVSText = "kube-proxy uses IPVS (link kube-ipvs0), where policies judge a packet to a Service by the Service's address and port, " +
	"and those for ingress of a pod of the same node do not judge it: set kube-proxy's mode to nftables or iptables, and remove the link if " +
	"it stays (ip link delete kube-ipvs0). Until then the agent is not ready, unless TORTIE_POLICY is on"
