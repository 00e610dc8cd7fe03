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
	// repairPause is the least time between two Events; later repairs wait for the next one. So a program that keeps
	// undoing the agent's work makes one Event and one line of the log a minute.
	repairPause = time.Minute
	// mostRepairs bounds the repairs that one Event names.
	mostRepairs = 5

	eventRepaired = "Repaired"
)

// repairs reports what other programs have undone on this host and the agent has made again: without a trace that
// program is never found. It is safe for concurrent use.
type repairs struct {
	to   Recorder // nil: only the log
	node string
	log  *slog.Logger

	mu      sync.Mutex // guards the rest
	day     string
	counts  map[string]int // of this day, by thing
	waiting []repair
	told    []repair // repairs in the last Event
	next    time.Time
}

// repair is a kind of thing that was repaired, of a few kinds, and what was done.
type repair struct{ thing, was string }

// add records repairs for the next flush.
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

// withRepairs returns the repairs of both, the newest of each thing.
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

// flush reports the repairs, unless it has just done so. Repairs of an Event that is not written yet, as the API server
// is away, are reported again.
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

// tables records that other programs changed a part of the table inet tortie.
func (r *repairs) tables(part string) {
	r.add(time.Now(), repair{fmt.Sprintf("nftables table inet %s, chains %s*", nft.TableName, part), "were changed or removed, written again"})
}

// alien records that another program's link had the name of one of ours.
func (r *repairs) alien(name, was string) {
	r.add(time.Now(), repair{"link " + name, fmt.Sprintf("was another program's, %s: replaced by ours", was)})
}

// policyTable records that other programs changed the table of policies.
func (r *repairs) policyTable() {
	r.add(time.Now(), repair{"nftables table inet tortie-policy", "was changed or removed, written again"})
}

// parameters are the kernel parameters that an earlier pass found or made right.
type parameters map[string]bool

// hold adds the parameters for forwarding: they are right after a pass.
func (p parameters) hold(c hostsysctl.Config) {
	for _, key := range c.Forwarding() {
		p[key.String()] = true
	}
}

// repairedSysctls returns the parameters that were right in an earlier pass, were wrong now, and are right again. It
// adds those to known that are right.
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

// addressAnnotations are the annotations by which other nodes reach this one and its pods.
var addressAnnotations = []string{
	api.AnnotationIPv4Address, api.AnnotationIPv6Address, api.AnnotationASNumber, api.AnnotationReflection,
	api.AnnotationIPv4TunnelAddr, api.AnnotationIPv4VXLANAddr, api.AnnotationIPv6VXLANAddr, api.AnnotationIPv4WireGuard,
	api.AnnotationIPv6WireGuard, api.AnnotationWireGuardKey, api.AnnotationWireGuardKeyV6, api.AnnotationWireGuardNextKey,
	api.AnnotationWireGuardNextKeyV6,
}

// annotations are the last right values of the Node's annotations, and the keys that are undone. The wrong values may
// be anybody's, so no Event has them.
type annotations struct {
	right  map[string]string
	undone map[string]bool
}

// look finds annotations that are wrong and were right before. It returns undone ones that are right again: their write
// succeeded, but the answer was lost.
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
		case wanted: // a value on its way to the Node is not known to be right
			delete(a.right, key)
			delete(a.undone, key)
		default:
			delete(a.undone, key)
		}
	}
	return done
}

// written returns the undone annotations, which are written now. They are unknown until they are seen right.
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

// linkOf returns the name of a tunnel's device.
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

// device is a tunnel's device as it was last made; zero: unknown.
type device struct {
	as    any          // as desired, without its peers
	peers []vxlan.Peer // VXLAN peers whose entries were made
	was   []string     // differences found since that are not repaired yet
}

// made records a pass's attempt to make the device: the differences from the desired device that it found, and its
// error. It returns the repairs. A device that is new or desired otherwise than before is no repair.
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

// madeVXLAN is made for a VXLAN device, with the entries of peers.
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

// made records what a pass has repaired on a device: see device.made.
func (a *Agent) made(k desired.TunnelKind, as any, was []string, err error) {
	t := &a.tunnels
	a.repairs.add(time.Now(), t.devices[k].made(linkOf(k), as, t.unlessAlien(k, was), err)...)
}

// unlessAlien returns was; nil if the device replaced another program's, which is recorded already.
func (t *tunnels) unlessAlien(k desired.TunnelKind, was []string) []string {
	if t.aliens[linkOf(k)] {
		return nil
	}
	return was
}

// replaced records that another program's link had the name of one of ours.
func (a *Agent) replaced(name, was string) {
	a.tunnels.aliens[name] = true
	a.repairs.alien(name, was)
}

// lostPeers returns the repair of so many of all peers of a tunnel's device.
func lostPeers(name string, lost, all int) []repair {
	if lost == 0 {
		return nil
	}
	return []repair{{"peers of " + name, fmt.Sprintf("%d of %d were missing or changed, written again", lost, all)}}
}

// repairedRoutes compares the desired routes of two passes: if they are equal, routes that were written had been
// undone.
func repairedRoutes(before, now []desired.DesiredRoute, written int) []repair {
	if written == 0 || len(before) == 0 || !reflect.DeepEqual(desired.RoutesOf(before), desired.RoutesOf(now)) {
		return nil
	}
	return []repair{
		{"routes", fmt.Sprintf("%d of %d were missing or changed, such as one to %s: written again", written, len(now), firstDestination(now))},
	}
}

func firstDestination(ways []desired.DesiredRoute) netip.Prefix { return ways[0].Route.Dst }
