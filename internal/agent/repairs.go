package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

const (
	// repairPause is how long after an Event the next one may follow; what is repaired meanwhile is in that one. A program
	// that undoes all at once whatever the agent writes makes one Event and one line of the log a minute.
	repairPause = time.Minute
	// mostRepairs bounds what one Event names.
	mostRepairs = 5

	eventRepaired = "Repaired"
)

// repairs tells of what other programs have undone on this host and the agent has made again: without a trace that
// program is never found. It is safe for concurrent use.
type repairs struct {
	to   Recorder // nil: the log alone
	node string
	log  *slog.Logger

	mu      sync.Mutex // guards the rest
	day     string
	counts  map[string]int // of this day, by thing
	waiting []repair
	told    []repair // in the last Event
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
	}
	r.waiting = withRepairs(r.waiting, done)
}

// withRepairs are all of both, with the newest of each thing.
func withRepairs(all, newer []repair) []repair {
	for _, d := range newer {
		if i := slices.IndexFunc(all, func(r repair) bool { return r.thing == d.thing }); i >= 0 {
			all[i] = d
		} else {
			all = append(all, d)
		}
	}
	return all
}

// flush tells of what was repaired, unless it has just told. What was told and is not written yet, as the API server is
// away, is told again.
func (r *repairs) flush(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 || now.Before(r.next) {
		return
	}
	r.next = now.Add(repairPause)
	self := desired.NodeObject(r.node)
	if r.to == nil || !r.to.Unwritten(self, eventRepaired) {
		r.told = nil
	}
	for i, d := range r.waiting {
		r.log.Warn("repaired what another program has changed", "what", d.thing, "was", d.was, "today", r.counts[d.thing])
		r.waiting[i].was = fmt.Sprintf("%s (%s time today)", d.was, counted(r.counts[d.thing]))
	}
	r.told, r.waiting = withRepairs(r.told, r.waiting), nil
	if r.to == nil {
		return
	}
	var texts []string
	for _, d := range r.told {
		texts = append(texts, d.thing+" "+d.was)
	}
	if more := len(texts) - mostRepairs; more > 0 {
		texts = append(texts[:mostRepairs], fmt.Sprintf("%d more", more))
	}
	r.to.WarnOfPast(self, eventRepaired, strings.Join(texts, "; "))
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

// repairedSysctls returns which parameters that were right before were different, and are not now. It remembers those
// that are set.
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
	api.AnnotationIPv4Address, api.AnnotationIPv6Address, api.AnnotationASNumber, api.AnnotationReflection,
	api.AnnotationIPv4TunnelAddr, api.AnnotationIPv4VXLANAddr, api.AnnotationIPv6VXLANAddr, api.AnnotationIPv4WireGuard,
	api.AnnotationIPv6WireGuard, api.AnnotationWireGuardKey, api.AnnotationWireGuardKeyV6, api.AnnotationWireGuardNextKey,
	api.AnnotationWireGuardNextKeyV6,
}

// annotations are those of the Node: what they were when they were right, and which are undone. Their values are no
// agent's, and in no Event.
type annotations struct {
	right  map[string]string
	undone map[string]bool
}

// look finds out which are wrong that were right before. It returns those that are right again: the answer to their
// write was lost.
func (a *annotations) look(now, want map[string]string) (done []repair) {
	for _, key := range addressAnnotations {
		value, wanted := want[key]
		switch last, known := a.right[key]; {
		case wanted && now[key] == value:
			if a.undone[key] {
				done = append(done, repairedAnnotation(key))
			}
			a.right[key] = value
			delete(a.undone, key)
		case wanted && known && last == value:
			a.undone[key] = true
		case wanted: // what is on its way to the Node is not known to be right
			delete(a.right, key)
			delete(a.undone, key)
		default:
			delete(a.undone, key)
		}
	}
	return done
}

// written returns those that were wrong, and are written. They are unknown until they are seen so.
func (a *annotations) written() (done []repair) {
	for _, key := range addressAnnotations {
		if a.undone[key] {
			done = append(done, repairedAnnotation(key))
			delete(a.undone, key)
			delete(a.right, key)
		}
	}
	return done
}

func repairedAnnotation(key string) repair {
	return repair{"annotation " + key + " of the Node", "was changed or removed, written again"}
}

// linkOf is the device of a kind of tunnel.
func linkOf(k desired.TunnelKind) string {
	switch k {
	case desired.IPIPTunnel:
		return ipip.Device
	case desired.VXLANTunnel:
		return vxlan.Device4
	case desired.VXLANTunnel6:
		return vxlan.Device6
	case desired.WireGuardTunnel:
		return wireguard.Device4
	}
	return wireguard.Device6
}

// device is what the device of a tunnel was made to be; the zero value is none that is known.
type device struct {
	as    any          // as desired, without its peers
	peers []vxlan.Peer // of those of VXLAN, the ones whose entries were made
	was   []string     // what has been found otherwise since, and is not made right yet
}

// made notes that a pass was to make the device, with what it found otherwise than desired, and how it ended. It
// returns what it has repaired: what is desired for the first time, or otherwise than before, is no repair.
func (d *device) made(name string, as any, was []string, err error) (done []repair) {
	if d.as == nil || !reflect.DeepEqual(d.as, as) {
		if *d = (device{}); err == nil {
			d.as = as
		}
		return nil
	}
	if len(d.was) == 0 {
		d.was = was
	}
	if err != nil || len(d.was) == 0 {
		return nil
	}
	how := "set again"
	if slices.Contains(d.was, "was missing") {
		how = "made again"
	}
	done, d.was = []repair{{"link " + name, strings.Join(d.was, ", ") + ", " + how}}, nil
	return done
}

// madeVXLAN is made with the entries of peers.
func (d *device) madeVXLAN(t vxlan.Tunnel, m vxlan.Merged, err error) (done []repair) {
	name, peers, before := vxlan.Device(t.Local.Is6()), t.Peers, setOf(d.peers)
	t.Peers = nil
	same := reflect.DeepEqual(d.as, any(t))
	done = d.made(name, t, m.Was, err)
	lost := 0
	for _, p := range m.Written {
		if before[p] && same && !m.Anew {
			lost++
		}
	}
	if d.peers = peers; err != nil {
		d.peers = slices.DeleteFunc(slices.Clone(peers), func(p vxlan.Peer) bool { return !before[p] })
	}
	return append(done, lostPeers(name, lost, len(peers))...)
}

func setOf(peers []vxlan.Peer) map[vxlan.Peer]bool {
	set := make(map[vxlan.Peer]bool, len(peers))
	for _, p := range peers {
		set[p] = true
	}
	return set
}

// made has told what a pass has repaired of a device: see device.made.
func (a *Agent) made(k desired.TunnelKind, as any, was []string, err error) {
	t := &a.tunnels
	a.repairs.add(time.Now(), t.devices[k].made(linkOf(k), as, t.unlessAlien(k, was), err)...)
}

// unlessAlien is what was found, or nothing of a device in whose place another program's was: that is told already.
func (t *tunnels) unlessAlien(k desired.TunnelKind, was []string) []string {
	if t.aliens[linkOf(k)] {
		return nil
	}
	return was
}

// replaced has a link told that was in the place of one of ours.
func (a *Agent) replaced(name, was string) {
	a.tunnels.aliens[name] = true
	a.repairs.alien(name, was)
}

// lostPeers are repairs of what the device of a tunnel has of so many of all peers.
func lostPeers(name string, lost, all int) []repair {
	if lost == 0 {
		return nil
	}
	return []repair{{"peers of " + name, fmt.Sprintf("%d of %d were missing or changed, written again", lost, all)}}
}

// repairedRoutes compares the desired routes of two passes: what is written though they are the same was undone.
func repairedRoutes(before, now []desired.DesiredRoute, written int) []repair {
	if written == 0 || len(before) == 0 || !reflect.DeepEqual(desired.RoutesOf(before), desired.RoutesOf(now)) {
		return nil
	}
	return []repair{
		{"routes", fmt.Sprintf("%d of %d were missing or changed, such as one to %s: written again", written, len(now), firstDestination(now))},
	}
}

func firstDestination(ways []desired.DesiredRoute) netip.Prefix { return ways[0].Route.Dst }
