package netpol

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// handlingPrefix begins the name of a chain to which nothing leads. The name encodes the agent's Handling for `node
// policy`, and for an agent that does not know its Handling yet. With the defaults there is no such chain.
const handlingPrefix = "handling-"

// handlingChain returns the chain, or nil for the defaults. It has a rule because chains without rules are found by
// known names only.
func handlingChain(m policy.Handling) *nft.Chain {
	if m == (policy.Handling{}) {
		return nil
	}
	name := fmt.Sprintf("%s%t-%t-%d-%d-%d", handlingPrefix, m.Reject, m.Invalid, m.Logs.Packets, m.Logs.Seconds, m.Logs.Burst)
	return &nft.Chain{Name: name, Rules: []nft.Rule{nft.NewRule("", nft.Do(nft.Return))}}
}

// handlingOf decodes the name of that chain in a table.
func handlingOf(content *nft.Content) (m policy.Handling) {
	for _, name := range content.Chains() {
		text, ours := strings.CutPrefix(name, handlingPrefix)
		text = strings.ReplaceAll(text, "-", " ")
		if !ours {
			continue
		}
		if _, err := fmt.Sscan(text, &m.Reject, &m.Invalid, &m.Logs.Packets, &m.Logs.Seconds, &m.Logs.Burst); err != nil {
			return policy.Handling{}
		}
	}
	return m
}

// ErrNoReject is in the error of the Sync that finds that the kernel cannot reject what policies deny. All else is
// done, and later Syncs do not try to reject.
var ErrNoReject = errors.New("packets that policies deny are dropped without an answer")

// treat updates the Handling; content is the table if it was just read.
func (e *Engine) treat(rs *policy.Ruleset, content *nft.Content) {
	now := e.handling
	switch {
	case rs.Handling != nil:
		now = *rs.Handling
	case content != nil:
		now = handlingOf(content)
	}
	now.Reject = now.Reject && !e.noReject
	if now == e.handling {
		return
	}
	e.handling = now
	if e.t != nil {
		e.resize(e.size)
	}
}

// logRate returns the rate of a Log rule.
func (t *translator) logRate() nft.Rate {
	if t.handling.Logs == (policy.LogRate{}) {
		return deniedRate
	}
	return nft.Rate(t.handling.Logs)
}
