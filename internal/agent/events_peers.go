package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/bgp"
)

const (
	// peerPatience is how long a configured session may be down before an Event reports it: longer than a peer's restart.
	peerPatience = 30 * time.Second
	// meshPatience is the same for a session of the mesh, counted after its hold time: nodes restart more often than
	// routers.
	meshPatience = 90 * time.Second
	// mostNamed bounds the peers of one object that an Event names.
	mostNamed = 5
)

// reportPeers writes Events about BGPPeers with sessions that are down, and when all sessions of one are up again.
// reportMesh does it for the mesh.
func (t *eventReporter) reportPeers(now time.Time, k *seen) {
	if k.snapshot == nil {
		return
	}
	objects := map[string]*objectPeers{}
	for _, p := range k.peers {
		object := k.snapshot.Peering.Sources[p.Addr].Peer
		if object == "" {
			continue
		}
		o := objects[object]
		if o == nil {
			o = &objectPeers{}
			objects[object] = o
		}
		o.add(now, p)
	}
	down := map[string]bool{}
	for object, o := range objects {
		switch {
		case len(o.down) > 0:
			down[object] = true
			t.to.Warn(k.snapshot.PeerObject(object), "PeerDown", fmt.Sprintf("%s has no BGP session with %s: %s", k.node, o.named(), o.why))
		case t.down[object] && o.coming:
			down[object] = true // one is not up yet
		case t.down[object]:
			t.to.Note(k.snapshot.PeerObject(object), "PeerUp", k.node+" has its BGP sessions again")
		}
	}
	t.down = down
	t.reportMesh(now, k)
}

// reportMesh writes Events about sessions without a BGPPeer. The Event is about the Node at the other end, with the
// same text from all nodes: a node that goes away makes one Event, whatever the number of nodes. A node without any
// session left is at fault itself.
func (t *eventReporter) reportMesh(now time.Time, k *seen) {
	total, down := 0, map[string][]bgp.PeerStatus{}
	var names []string
	for _, p := range k.peers {
		name := k.peerName(p)
		if k.snapshot.Peering.Sources[p.Addr].Peer != "" || name == "" {
			continue
		}
		total++
		// a held-down peer has its own Event
		if p.State == bgp.Established || p.Since.IsZero() || now.Sub(p.Since) <= meshPatience || p.HeldUntil.After(now) {
			continue
		}
		if down[name] == nil {
			names = append(names, name)
		}
		down[name] = append(down[name], p)
	}
	lost := 0
	for _, peers := range down {
		lost += len(peers)
	}
	if lost == total && len(names) > 1 {
		t.cutOff = true
		t.to.Warn(k.self(), "PeerDown", fmt.Sprintf("%s has no BGP session with any of %d nodes, with %s: %s", k.node, len(names), names[0],
			whyDown(down[names[0]][0])))
		return
	}
	if t.cutOff {
		t.cutOff = false
		t.to.Note(k.self(), "PeerUp", k.node+" has BGP sessions with other nodes again")
	}
	for _, name := range names[:min(len(names), mostNamed)] {
		var addrs []string
		for _, p := range down[name] {
			addrs = append(addrs, p.Addr.String())
		}
		t.to.WarnCommon(desired.NodeObject(name), "PeerDown",
			fmt.Sprintf("other nodes have no BGP session with %s at %s: %s", name, strings.Join(addrs, " and "), whyDown(down[name][0])))
	}
}

// objectPeers are the peers of one BGPPeer.
type objectPeers struct {
	down   []string
	why    string // of the first in down
	coming bool   // one is down for less than peerPatience
}

func (o *objectPeers) add(now time.Time, p bgp.PeerStatus) {
	switch {
	case p.State == bgp.Established:
	case now.Sub(p.Since) <= peerPatience:
		o.coming = true
	default:
		if len(o.down) == 0 {
			o.why = whyDown(p)
		}
		o.down = append(o.down, p.Addr.String())
	}
}

// whyDown returns the reason why there is no session, for Events: each text makes an Event, so it has nothing of the
// peer's own texts. node peers has the details.
func whyDown(p bgp.PeerStatus) string {
	switch {
	case p.Failure != "":
		return p.Failure
	case p.LastError != "": // there is no session to try
		class, _, _ := strings.Cut(firstLine(p.LastError), ": ")
		return class
	case p.Passive:
		return "it has not connected: this end is passive and waits for it"
	}
	return "connecting"
}

// named lists the peers that are down.
func (o *objectPeers) named() string {
	if more := len(o.down) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(o.down[:mostNamed], ", "), more)
	}
	return strings.Join(o.down, ", ")
}
