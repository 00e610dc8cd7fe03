package takeover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// Protocols are the route protocols of BIRD and Felix.
var Protocols = []netlinkx.Protocol{netlinkx.ProtocolBIRD, netlinkx.ProtocolFelix}

// rules are Felix's in nf_tables: a table for each family in one of its modes, chains in iptables' tables in the other.
var rules = nft.Foreign{Tables: []string{"calico"}, Chain: "cali-", Mark: "cali:"}

// dispatch is the chain by which Felix sends packets of pods to their policies: in iptables' table filter in one of its
// modes, in its own table in the other. It makes all chains of a table in one transaction, once it knows all policies.
const dispatch = "cali-from-wl-dispatch"

// rulesPause is the interval of the searches for Felix's rules.
const rulesPause = time.Minute

// Watch follows what Calico left on this node. It is for one goroutine.
type Watch struct {
	kernel  *netlinkx.Conn
	table   *nft.Table
	crypt   *wireguard.Syncer
	remove  bool
	sockets func() ([]string, error)

	encrypts bool // the agent uses WireGuard itself

	tracker Tracker
	birds   []string // sockets that listen
	looked  time.Time
	inPlace bool        // the agent's own rules were in place at the last call of Look
	rules   nft.Remains // Felix's rules that were found
	others  []string    // descriptions of other leftovers
	failed  error       // error of searching or removing
}

// NewWatch returns a Watch. It does not report ip rules that crypt removes. With remove it removes Felix's rules; else
// it only reports them.
func NewWatch(kernel *netlinkx.Conn, table *nft.Table, crypt *wireguard.Syncer, remove bool) *Watch {
	return &Watch{kernel: kernel, table: table, crypt: crypt, remove: remove, sockets: listeningBIRD}
}

// SetEncrypts sets whether the agent uses WireGuard itself: then it takes over Felix's ip rule for it.
func (w *Watch) SetEncrypts(on bool) { w.encrypts = on }

// Predecessors returns the predecessors' state for routes. ranges are the cluster's pools.
func (w *Watch) Predecessors(now time.Time, ranges []netip.Prefix) routes.Predecessors {
	e := routes.Predecessors{Ranges: ranges}
	var err error
	if w.birds, err = w.sockets(); err != nil {
		w.birds = []string{err.Error()} // a BIRD may run
	}
	if len(w.birds) > 0 || w.tracker.Writes(now, netlinkx.ProtocolBIRD) {
		e.Alive = append(e.Alive, netlinkx.ProtocolBIRD)
	}
	if w.felixRuns(now) {
		e.Alive = append(e.Alive, netlinkx.ProtocolFelix)
	}
	for _, protocol := range e.Alive {
		w.tracker.Leaves(protocol)
	}
	return e
}

func (w *Watch) felixRuns(now time.Time) bool {
	return w.tracker.Writes(now, netlinkx.ProtocolFelix) || w.tracker.WritesRules(now)
}

// FelixPolicies describes where Felix's policies are in force on this node, whether it runs or not; empty: nowhere.
// Other rules of Felix's, such as NAT, do not count.
func FelixPolicies(ctx context.Context, kernel *netlinkx.Conn, table *nft.Table) (string, error) {
	chains, err := table.Chains(ctx)
	if err != nil && !nft.Missing(err) {
		return "", err
	}
	for _, c := range chains {
		if c.Table == "filter" && c.Chain == dispatch || slices.Contains(rules.Tables, c.Table) && c.Chain == "filter-"+dispatch {
			return fmt.Sprintf("chain %s", c), nil
		}
	}
	legacy, err := kernel.LegacyChains()
	for _, c := range legacy {
		if c.Table == "filter" && c.Name == dispatch {
			return fmt.Sprintf("chain %s in table %s of iptables-legacy", c.Name, c.Table), nil
		}
	}
	return "", err
}

// Took notes routes that were removed or replaced.
func (w *Watch) Took(now time.Time, routes []netlinkx.Route) { w.tracker.TookRoutes(now, routes) }

// Look searches for Felix's rules at most every rulesPause, and also when the agent's own rules have come into place:
// Felix's drop the packets of new pods. It removes them if configured, Felix does not run, and the agent's own rules
// are in place.
func (w *Watch) Look(ctx context.Context, now time.Time, inPlace bool) {
	due := w.looked.IsZero() || now.Sub(w.looked) >= rulesPause || inPlace && !w.inPlace
	if w.inPlace = inPlace; !due {
		return
	}
	w.looked = now
	mayRemove := w.remove && inPlace && !w.felixRuns(now)
	found, err := w.table.Find(ctx, rules)
	if err == nil && !found.Empty() && mayRemove {
		if found, err = w.table.Remove(ctx, rules); err == nil {
			w.tracker.TookRules(now)
			found = nft.Remains{}
		}
	}
	w.rules = found
	sets, failed := w.sets(mayRemove && w.rules.Empty())
	others, trouble := w.findOthers()
	w.others, w.failed = append(sets, others...), errors.Join(err, failed, trouble)
}

// sets removes Felix's ipsets if it may; else it describes them.
func (w *Watch) sets(mayRemove bool) (found []string, err error) {
	sets, err := felixSets(w.kernel)
	if err != nil || len(sets) == 0 {
		return nil, err
	}
	if mayRemove {
		return nil, destroy(w.kernel, sets)
	}
	return []string{fmt.Sprintf("%d ipsets of Felix's, which do no harm (ipset destroy)", len(sets))}, nil
}

// felixSets returns the names of Felix's ipsets.
func felixSets(kernel *netlinkx.Conn) ([]string, error) {
	sets, err := kernel.IPSets()
	return slices.DeleteFunc(sets,
		func(name string) bool { return !strings.HasPrefix(name, "cali4") && !strings.HasPrefix(name, "cali6") }), err
}

func destroy(kernel *netlinkx.Conn, sets []string) error {
	var errs []error
	for _, name := range sets {
		errs = append(errs, kernel.DestroyIPSet(name))
	}
	return errors.Join(errs...)
}

// findOthers describes leftovers that the Watch does not remove.
func (w *Watch) findOthers() (found []string, err error) {
	chains, err := w.kernel.LegacyChains()
	if i := slices.IndexFunc(chains, func(c netlinkx.LegacyChain) bool { return strings.HasPrefix(c.Name, rules.Chain) }); i >= 0 {
		found = append(found, fmt.Sprintf("rules of Felix's in iptables-legacy (chain %s of table %s): they drop the packets of pods that it "+
			"has not heard of: remove them with iptables-legacy, or restart the machine", chains[i].Name, chains[i].Table))
	}
	policies, failed := w.kernel.Rules()
	err = errors.Join(err, failed)
	for _, r := range policies {
		if r.Priority != wireguard.DefaultPriority || r.Mark == 0 || w.encrypts {
			continue
		}
		removes, failed := w.crypt.Removes(r)
		if err = errors.Join(err, failed); failed == nil && !removes {
			found = append(found,
				fmt.Sprintf("ip rule %d leads packets to table %d, as Felix has it for WireGuard (ip rule del priority %d; ip route flush table %d)",
					r.Priority, r.Table, r.Priority, r.Table))
		}
	}
	return found, err
}

// Problems returns the problems that the last calls of Predecessors and Look found.
func (w *Watch) Problems(now time.Time) []error {
	var problems []error
	note := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	const remedy = "what it has is left alone: remove calico-node from this node"
	switch {
	case len(w.birds) > 0:
		note("BIRD still runs on this node (%s): %s", strings.Join(w.birds, ", "), remedy)
	case w.tracker.Writes(now, netlinkx.ProtocolBIRD):
		note("BIRD still runs on this node, as routes of protocol %d that were removed came back: %s", netlinkx.ProtocolBIRD, remedy)
	}
	switch {
	case w.tracker.Writes(now, netlinkx.ProtocolFelix):
		note("Felix still runs on this node, as routes of protocol %d that were removed came back: %s", netlinkx.ProtocolFelix, remedy)
	case w.tracker.WritesRules(now):
		note("Felix still runs on this node, as rules that were removed came back: %s", remedy)
	}
	if !w.rules.Empty() && !w.felixRuns(now) {
		then := "set TORTIE_REMOVE_CALICO_RULES=true, or run node cleanup calico"
		if w.remove {
			then = "the agent removes them once its own are in force"
		}
		note("Calico's Felix has left rules on this node (%s): they drop the packets of pods that it has not heard of, and keep policies in "+
			"force that are not updated any more: %s", w.rules, then)
	}
	for _, text := range w.others {
		note("left on this node: %s", text)
	}
	if w.failed != nil {
		note("what Calico may have left on this node: %w", w.failed)
	}
	return problems
}
