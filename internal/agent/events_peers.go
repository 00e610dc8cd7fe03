package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
)

const (
	// peerPatience is how long a configured session may be down before an Event reports it: a peer that restarts is not
	// worth one.
	peerPatience = 30 * time.Second
	// mostNamed bounds the peers of one object that an Event names.
	mostNamed = 5
)

// reportPeers writes Events on BGPPeers whose sessions are down, and when all of an object are up again. Sessions of the mesh are left to the
// agents at their other ends: else every node would write an Event when one node goes away.
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
			down[object] = true // it is not up yet
		case t.down[object]:
			t.to.Note(k.snapshot.PeerObject(object), "PeerUp", k.node+" has its BGP sessions again")
		}
	}
	t.down = down
}

// objectPeers are the peers of one object.
type objectPeers struct {
	down   []string
	why    string // the reason of the first
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

// whyDown returns the reason why there is no session.
func whyDown(p bgp.PeerStatus) string {
	switch {
	case p.LastError != "":
		return firstLine(p.LastError)
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
