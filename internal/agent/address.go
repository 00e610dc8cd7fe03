package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

const (
	// addressHold is how long a changed address of the node must stay before the agent ends for it; addressHoldNew is the
	// same for a new agent: an address that comes and goes must not make it start again and again.
	addressHold    = 10 * time.Second
	addressHoldNew = time.Minute
	// newFor is how long an agent is new.
	newFor = 10 * time.Minute
	// tentativeTime is how long a starting agent waits for an IPv6 address in duplicate address detection.
	tentativeTime = 10 * time.Second
	// askTime bounds a DNS lookup for the node's address.
	askTime = 2 * time.Second
)

// place is where this node is: its addresses in both families.
type place struct {
	v4, v6 nodeaddr.Choice
}

// same reports whether other nodes reach both at the same addresses.
func (p place) same(o place) bool {
	return p.v4.Addr.Addr() == o.v4.Addr.Addr() && p.v6.Addr.Addr() == o.v6.Addr.Addr()
}

// lacks reports whether p has no address in a family in which o has one.
func (p place) lacks(o place) bool {
	return o.v4.Addr.IsValid() && !p.v4.Addr.IsValid() || o.v6.Addr.IsValid() && !p.v6.Addr.IsValid()
}

func (p place) String() string {
	var texts []string
	for _, c := range []nodeaddr.Choice{p.v4, p.v6} {
		if c.Addr.IsValid() {
			texts = append(texts, c.Addr.Addr().String())
		}
	}
	return strings.Join(texts, " and ")
}

// describe fills in a place's addresses and links.
func describe(s *desired.Self, p place) {
	s.Addr, s.AddrSource, s.Link, s.LinkMTU = p.v4.Addr, p.v4.Source, p.v4.Link, p.v4.MTU
	s.Addr6, s.AddrSource6, s.Link6, s.LinkMTU6 = p.v6.Addr, p.v6.Source, p.v6.Link, p.v6.MTU
}

// notes returns remarks for the operator on the choice.
func (p place) notes() []error {
	var notes []error
	for _, c := range []nodeaddr.Choice{p.v4, p.v6} {
		for _, n := range c.Notes {
			notes = append(notes, desired.InSelf(n.Reason, fmt.Errorf("node address: %s", n.Text)))
		}
	}
	return notes
}

// anchor keeps the node at its place while the found place changes.
type anchor struct {
	used  place
	since time.Time // when it was first used; zero: there is none yet
	next  place     // another place that was found
	seen  time.Time // since when next is found
}

// hold returns the place to use, given the place that is found now. The used place stays in use while none is found,
// and until another one has stayed the same for some time; then hold returns errRestart. Any other error describes the
// problem meanwhile.
func (a *anchor) hold(now time.Time, found place, failed error) (place, error) {
	switch {
	case a.since.IsZero() && failed != nil:
		return place{}, failed
	case a.since.IsZero() || failed == nil && found.same(a.used):
		if a.since.IsZero() {
			a.since = now
		}
		a.used, a.seen = found, time.Time{} // link and MTU may change
		return found, nil
	case failed != nil:
		a.seen = time.Time{}
		return a.used, fmt.Errorf("%w; going on as %s", failed, a.used)
	case found.lacks(a.used):
		a.seen = time.Time{}
		return a.used, fmt.Errorf("of this node's addresses %s only %q is found; going on with what was used", a.used, found)
	}
	if a.seen.IsZero() || !found.same(a.next) {
		a.next, a.seen = found, now
	}
	wait := addressHold
	if now.Sub(a.since) < newFor {
		wait = addressHoldNew
	}
	if now.Sub(a.seen) >= wait {
		return found, errRestart
	}
	return a.used, fmt.Errorf("this node's address changed from %s to %s: the agent starts anew with it if it stays for %s",
		a.used, found, wait)
}

// moving reports whether another place was found, which may become the place to use.
func (a *anchor) moving() bool { return !a.seen.IsZero() }

// find looks for the node's addresses. Errors about passing states, such as an address that is not usable yet, have no
// Event.
func (a *Agent) find(ctx context.Context, links []netlinkx.Link) (place, error) {
	addrs, err := a.Kernel.Addrs(0, netlinkx.FamilyAll)
	if err != nil {
		return place{}, err
	}
	a.addrs = addrs
	host := hostLinks(links, addrs)
	var p place
	if p.v4, err = nodeaddr.Choose(a.request(ctx, nodeaddr.IPv4, a.Config.Addresses.V4, host)); err != nil {
		return p, desired.InSelf(nodeaddr.EventNone, err)
	}
	six := a.request(ctx, nodeaddr.IPv6, a.Config.Addresses.V6, host)
	p.v6, err = nodeaddr.Choose(six)
	switch {
	case a.anchor.since.IsZero() && !p.v6.Addr.IsValid() && six.Awaits() && time.Since(a.bgp.begun) < tentativeTime:
		return p, fmt.Errorf("an IPv6 address of this host is not usable yet (duplicate address detection)")
	case err != nil && !p.v4.Addr.IsValid():
		return p, desired.InSelf(nodeaddr.EventNone, err)
	case err != nil:
		p.v6.Notes = append(p.v6.Notes, nodeaddr.Note{Reason: nodeaddr.EventNone, Text: err.Error()}) // the node works without it
	case !p.v4.Addr.IsValid() && !p.v6.Addr.IsValid():
		return p, desired.InSelf(nodeaddr.EventNone,
			fmt.Errorf("node %s has no address: set the environment variables IP or IP6 to one, or to autodetect", a.node.Name))
	}
	return p, nil
}

// request returns the request for an address of a family.
func (a *Agent) request(ctx context.Context, f nodeaddr.Family, how config.Address, host []nodeaddr.Link) nodeaddr.Request {
	annotation := map[nodeaddr.Family]string{nodeaddr.IPv4: api.AnnotationIPv4Address, nodeaddr.IPv6: api.AnnotationIPv6Address}[f]
	stored, _ := netip.ParsePrefix(a.node.Annotations[annotation]) // an invalid annotation is not kept
	return nodeaddr.Request{
		Family: f, Setting: how.Setting, Method: how.Method, Node: a.node.Name, Internal: a.node.InternalIPs(), Stored: stored, Links: host,
		Source: func(host string) (netip.Addr, error) { return a.sourceTowards(ctx, f, host) },
	}
}

// sourceTowards returns the address from which packets to a host leave. A name is looked up once per process.
func (a *Agent) sourceTowards(ctx context.Context, f nodeaddr.Family, host string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		key := f.String() + " " + host
		known, ok := a.hosts[key]
		if !ok {
			if known, err = lookup(ctx, f, host); err != nil {
				return netip.Addr{}, err
			}
			a.hosts[key] = known
		}
		addr = known
	}
	return a.Kernel.Source(addr)
}

func lookup(ctx context.Context, f nodeaddr.Family, host string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	network := map[nodeaddr.Family]string{nodeaddr.IPv4: "ip4", nodeaddr.IPv6: "ip6"}[f]
	found, err := net.DefaultResolver.LookupNetIP(ctx, network, host)
	if err != nil {
		return netip.Addr{}, err
	}
	return found[0].Unmap(), nil
}

// hostLinks returns the host's links that have addresses, with these.
func hostLinks(links []netlinkx.Link, addrs []netlinkx.Addr) []nodeaddr.Link {
	kinds := make(map[int]string, len(links))
	on := make(map[int][]nodeaddr.Addr, len(links))
	for _, l := range links {
		kinds[l.Index] = l.Kind
	}
	for _, a := range addrs {
		on[a.Link] = append(on[a.Link], nodeaddr.Addr{Prefix: a.Prefix, Tentative: a.Tentative, Passing: a.Passing})
	}
	host := make([]nodeaddr.Link, 0, len(links))
	for _, l := range links {
		if len(on[l.Index]) == 0 {
			continue
		}
		host = append(host, nodeaddr.Link{
			Name: l.Name, Kind: l.Kind, MTU: l.MTU, Down: l.Down, Loopback: l.Loopback, Master: kinds[l.Master], Addrs: on[l.Index],
		})
	}
	return host
}

// logCandidates logs the host's addresses, and why each was chosen or not, whenever they change.
func (a *Agent) logCandidates(found []nodeaddr.Candidate) {
	if slices.Equal(found, a.candidates) {
		return
	}
	a.candidates = found
	a.Status.SetFound(found)
	for _, c := range found {
		a.Log.Info("address of this host", "address", c.Addr, "interface", c.Link, "chosen", c.Chosen, "why", c.Why)
	}
}

// checkDuplicate refuses an address that another node has announced. If this node has announced it as well, it is only
// a problem: both nodes have worked so far, however badly.
func (a *Agent) checkDuplicate(s *desired.Snapshot) (problem, refusal error) {
	other, addr := s.Duplicate()
	switch {
	case a.Config.Addresses.Shared:
		return nil, nil
	case other == "" && s.Unsure.Self != "" && !a.announced(s.Self.Addr.Addr()) && !a.announced(s.Self.Addr6.Addr()):
		return nil, fmt.Errorf("node %s has announced an address of node %s: finding out whether its kubelet says so too",
			s.Unsure.Self, a.node.Name)
	case other == "":
		return nil, nil
	}
	err := desired.InSelf("DuplicateAddress", fmt.Errorf("node address %s of node %s is also that of node %s: give one of them another, or "+
		"delete the Node that is gone; DISABLE_NODE_IP_CHECK=true takes it all the same", addr, a.node.Name, other))
	if a.announced(addr) {
		return err, nil
	}
	return nil, err
}

// announced reports whether this node's Node has an address in its annotations.
func (a *Agent) announced(addr netip.Addr) bool {
	for _, key := range []string{api.AnnotationIPv4Address, api.AnnotationIPv6Address} {
		if stored, _ := netip.ParsePrefix(a.node.Annotations[key]); addr.IsValid() && stored.Addr() == addr {
			return true
		}
	}
	return false
}
