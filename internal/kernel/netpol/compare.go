package netpol

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// Comparison holds the differences between the kernel's table and a Ruleset.
type Comparison struct {
	// Table: the table exists and is not dormant.
	Table bool
	links [2]map[string]string
	hosts map[string][policy.Stages][2]string
	have  *state
	want  *image
	// denied are the numbers of denied packets.
	denied map[Denied]uint64
}

// Compare compares the table of the process's network namespace with a Ruleset. It changes nothing.
func Compare(ctx context.Context, linkPrefix string, rs *policy.Ruleset) (*Comparison, error) {
	e := New(nil, linkPrefix)
	defer e.Close()
	content, err := e.look(ctx, &Stats{})
	if err != nil {
		return nil, err
	}
	if e.t == nil {
		e.resize(sizeFor(most(counts(rs.Members))))
	}
	e.treat(rs, content)
	want := e.heard(rs, content)
	c := &Comparison{have: e.adopt(content, want), want: want, links: [2]map[string]string{{}, {}}}
	c.Table = c.have.table
	for link, endpoint := range rs.Endpoints {
		for d, key := range endpoint.Programs {
			c.links[d][link] = c.link(link, d, e.t.programs[programKey{Direction: policy.Direction(d), key: key}])
		}
	}
	c.hosts = c.ofHosts(rs, e.t)
	e.denied = e.t.denied
	counters, err := e.Counters(ctx)
	c.denied = make(map[Denied]uint64, len(counters))
	for d, n := range counters {
		c.denied[d] = n.Packets
	}
	return c, err
}

// Denied returns how many packets a policy has denied in a direction, for any pod of the node, since its rules were
// made.
func (c *Comparison) Denied(d policy.Direction, by policy.ID) (packets uint64) {
	return c.denied[Denied{Direction: d, By: by}]
}

// heard returns the image with or without logging, whichever fits the table's chains: the kernel may lack logging.
func (e *Engine) heard(rs *policy.Ruleset, content *nft.Content) *image {
	names := content.Chains()
	deny := func(mute bool) (want *image, found int) {
		e.mute = mute
		e.resize(e.size)
		want, _ = e.image(rs, map[programKey]error{})
		for _, name := range names {
			if _, denies := e.t.denied[name]; denies {
				found++
			}
		}
		return want, found
	}
	_, silent := deny(true)
	want, loud := deny(false)
	if silent > loud {
		want, _ = deny(true)
	}
	return want
}

// ofHosts returns the results of Host. Rules before the programs are not compared: only the agent knows them.
func (c *Comparison) ofHosts(rs *policy.Ruleset, t *translator) map[string][policy.Stages][2]string {
	found := map[string][policy.Stages][2]string{}
	for link, host := range rs.Hosts {
		var texts [policy.Stages][2]string
		for stage, both := range host.Programs {
			for d, key := range both {
				silent := programKey{policy.Direction(d), key, true, true}
				switch p := cmp.Or(t.programs[programKey{policy.Direction(d), key, true, false}], t.programs[silent]); {
				case !c.Table:
					texts[stage][d] = "there is no table inet " + TableName
				case key != "" && p == nil:
					texts[stage][d] = "the program cannot be made"
				case key != "" && !c.whole(p):
					texts[stage][d] = "open: the program is not there"
				}
			}
		}
		found[link] = texts
	}
	return found
}

// Host returns how the kernel differs from the Ruleset for the host endpoint of a link; "" if it enforces it.
func (c *Comparison) Host(link string, stage policy.Stage, d policy.Direction) string {
	return c.hosts[link][stage][d]
}

// Link returns how the kernel differs from the Ruleset for a link of its Endpoints; "" if it enforces it. Members are
// compared by Members.
func (c *Comparison) Link(link string, d policy.Direction) string { return c.links[d][link] }

// Members reports whether an address is in the Ruleset's sets, and in no others.
func (c *Comparison) Members(a netip.Addr) bool {
	return slices.Equal(c.have.members[a], c.want.members[a])
}

// DropsToHost reports whether pods open no connections to their node, whatever their programs allow.
func (c *Comparison) DropsToHost() bool { return has(c.have.chains, noPodsChain) }

func (c *Comparison) link(link string, d int, p *program) string {
	have, there := c.have.links[d][link]
	want := c.want.links[d][link]
	switch {
	case !c.Table:
		return "there is no table inet " + TableName
	case !c.base():
		return "a base chain was changed"
	case !there && len(c.have.closed) > 0:
		return "closed: the link has no program yet"
	case !there:
		return "open: the link has no program yet"
	case strings.HasPrefix(have.Comment, closedFor("")) && have.Verdict == nft.Accept:
		return "open: the agent does not know the pod yet"
	case strings.HasPrefix(have.Comment, closedFor("")):
		return "closed: the agent does not know the pod yet"
	case have.Comment != want.Comment:
		return fmt.Sprintf("the program is that of a pod before it, UID %s", have.Comment)
	case have.Verdict != want.Verdict:
		return "another program is in force: " + verdictText(have.Verdict)
	case p != nil && !c.whole(p):
		return "chains or sets of the program were changed"
	}
	return ""
}

func verdictText(v nft.Verdict) string {
	switch v {
	case nft.Accept:
		return "it allows everything"
	case nft.Drop:
		return "it denies everything"
	}
	return "its policies differ"
}

// base reports whether the base chains are right.
func (c *Comparison) base() bool {
	return c.have.chains[egressChain] && c.have.chains[ingressChain] && c.have.chains[toHostChain] && !c.have.remake
}

// whole reports whether the kernel has all of a program.
func (c *Comparison) whole(p *program) bool {
	missing := func(right map[string]bool) func(string) bool {
		return func(name string) bool { return !right[name] }
	}
	return !slices.ContainsFunc(p.chains, missing(c.have.chains)) && !slices.ContainsFunc(p.sets, missing(c.have.sets))
}
