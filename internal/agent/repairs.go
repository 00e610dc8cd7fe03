package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

const (
	// repairPause is how long after an Event the next one may follow; what is repaired meanwhile is in that one. A program that undoes all at once
	// whatever the agent writes makes one Event and one line of the log a minute. It is
	// longer than the time in which the Recorder drops a new text.
	repairPause = time.Minute + time.Second
	// mostRepairs bounds what one Event names, and what is counted of a day.
	mostRepairs = 5
)

// repairs tells of what other programs have undone on this host and the agent has made again: without a trace that program is never found. It is safe for
// concurrent use.
type repairs struct {
	to   Recorder // nil: the log alone
	node string
	log  *slog.Logger

	mu      sync.Mutex // guards the rest
	day     string
	counts  map[string]int // of this day, by thing
	waiting []repair
	next    time.Time
}

// repair is one thing of those that there are few of, and what was done.
type repair struct{ thing, was string }

// add notes repairs. They are told at the next flush.
func (r *repairs) add(now time.Time, done ...repair) {
	if len(done) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if day := now.UTC().Format(time.DateOnly); day != r.day {
		r.day, r.counts = day, map[string]int{}
	}
	for _, d := range done {
		r.counts[d.thing]++
		known := false
		for i := range r.waiting {
			if known = r.waiting[i].thing == d.thing; known {
				r.waiting[i] = d
				break
			}
		}
		if !known {
			r.waiting = append(r.waiting, d)
		}
	}
}

// flush tells of what was repaired, unless it has just told.
func (r *repairs) flush(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 || now.Before(r.next) {
		return
	}
	r.next = now.Add(repairPause)
	var texts []string
	for _, d := range r.waiting {
		text := fmt.Sprintf("%s %s (%s time today)", d.thing, d.was, counted(r.counts[d.thing]))
		r.log.Warn("repaired what another program has changed", "what", d.thing, "was", d.was, "today", r.counts[d.thing])
		texts = append(texts, text)
	}
	r.waiting = nil
	if r.to == nil {
		return
	}
	if more := len(texts) - mostRepairs; more > 0 {
		texts = append(texts[:mostRepairs], fmt.Sprintf("%d more", more))
	}
	r.to.Warn(desired.NodeObject(r.node), "Repaired", strings.Join(texts, "; "))
}

func counted(n int) string {
	suffix := "th"
	if tens := n / 10 % 10; tens != 1 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprint(n, suffix)
}

// tables has what other programs did to a part of the table inet tortie told.
func (r *repairs) tables(part string) {
	r.add(time.Now(), repair{fmt.Sprintf("nftables table inet %s, chains %s*", nft.TableName, part), "were changed or removed, written again"})
}

// alien has a link told that was in the place of one of ours.
func (r *repairs) alien(name, was string) {
	r.add(time.Now(), repair{"link " + name, fmt.Sprintf("was another program's, %s: replaced by ours", was)})
}

// policyTable is the same for the table of policies.
func (r *repairs) policyTable() {
	r.add(time.Now(), repair{"nftables table inet tortie-policy", "was changed or removed, written again"})
}

// parameters are those of the kernel that were found or made right before.
type parameters map[string]bool

// hold adds those by which the host forwards: they are right after a pass.
func (p parameters) hold(c hostsysctl.Config) {
	for _, key := range c.Forwarding() {
		p[key.String()] = true
	}
}

// repairedSysctls returns which parameters that were right before were different, and are not now. It remembers those that are set.
func repairedSysctls(known parameters, before []hostsysctl.Difference, get hostsysctl.Get) (done []repair) {
	for _, d := range before {
		if now, err := get(d.Key); err != nil || now != d.Value {
			continue
		}
		if known[d.Key.String()] {
			done = append(done, repair{hostsysctl.Dotted(d.Key), fmt.Sprintf("was %s, set to %s", d.Was, d.Value)})
		}
		known[d.Key.String()] = true
	}
	return done
}

// addressAnnotations tell other nodes how to reach this one and its pods.
var addressAnnotations = []string{
	api.AnnotationIPv4Address, api.AnnotationIPv6Address, api.AnnotationIPv4TunnelAddr, api.AnnotationIPv4VXLANAddr, api.AnnotationIPv6VXLANAddr,
}

// repairedAnnotations returns which annotations were right before, and are not now. It remembers those that are. Their values are no agent's, and in no
// Event.
func repairedAnnotations(right, now, want map[string]string) (done []repair) {
	for _, key := range addressAnnotations {
		value, wanted := want[key]
		switch last, known := right[key]; {
		case wanted && now[key] == value:
			right[key] = value
		case wanted && known && last == value:
			done = append(done, repair{"annotation " + key + " of the Node", "was changed or removed, written again"})
			delete(right, key) // until it is seen as it is written
		}
	}
	return done
}

// linkOf is the device of a kind of tunnel, and the kernel's name of its kind.
func linkOf(k desired.TunnelKind) (name, kind string) {
	switch k {
	case desired.IPIPTunnel:
		return ipip.Device, "ipip"
	case desired.VXLANTunnel:
		return vxlan.Device4, "vxlan"
	case desired.VXLANTunnel6:
		return vxlan.Device6, "vxlan"
	case desired.WireGuardTunnel:
		return wireguard.Device4, "wireguard"
	}
	return wireguard.Device6, "wireguard"
}

// repairedLinks returns what was wrong with the tunnels' devices in links that stood before, and stand now.
func repairedLinks(before, now desired.Standing, links []netlinkx.Link) (done []repair) {
	found := desired.StandingOf(links)
	for k := range desired.TunnelKinds {
		if !now[k] || found[k] {
			continue
		}
		name, kind := linkOf(k)
		was := "was missing, made again"
		for _, l := range links {
			switch {
			case l.Name != name:
			case !l.Here(kind): // see alien
				was = ""
			default:
				was = "was down or changed, set again"
			}
		}
		if before[k] && was != "" {
			done = append(done, repair{"link " + name, was})
		}
	}
	return done
}

// repairedRoutes compares the desired routes of two passes: what is written though they are the same was undone.
func repairedRoutes(before, now []desired.DesiredRoute, written int) []repair {
	if written == 0 || len(before) == 0 || !reflect.DeepEqual(desired.RoutesOf(before), desired.RoutesOf(now)) {
		return nil
	}
	return []repair{{"routes", fmt.Sprintf("%d of %d were missing or changed, such as one to %s: written again", written, len(now), firstDestination(now))}}
}

func firstDestination(ways []desired.DesiredRoute) netip.Prefix { return ways[0].Route.Dst }
