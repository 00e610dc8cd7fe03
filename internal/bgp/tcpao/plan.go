package tcpao

import (
	"net/netip"
	"slices"
)

// installed is a key on a socket. Its algorithm has the kernel's name.
type installed struct {
	peer          netip.Addr
	send, receive uint8
	is            algorithm
	secret        string
	next          bool   // requested from the peer: RNextKeyID
	current       bool   // this end signs with it
	verified      uint64 // segments of the peer signed with it
	bad           uint64 // segments with its ID and another MAC
}

func (i installed) matches(k key) bool {
	return i.send == k.send && i.receive == k.receive && i.is == algorithms[k.algorithm] && i.secret == k.secret
}

// op is a kind of step.
type op int

const (
	remove     op = iota // must succeed: another key takes the ID
	add                  // must succeed
	askFor               // request the key from the peer, connections only
	removeIdle           // fails while either end uses the key
)

// step is one change of a socket's keys of a peer. A removed key has only its IDs.
type step struct {
	op  op
	key key
}

// plan returns the steps from a socket's keys of a peer to the wanted ones. Keys are removed last, unless another key
// takes their ID.
func plan(have []installed, want []key, connection bool) []step {
	var first, last []step
	for _, h := range have {
		old := key{send: h.send, receive: h.receive}
		switch {
		case slices.ContainsFunc(want, h.matches):
		case slices.ContainsFunc(want, old.overlaps):
			first = append(first, step{remove, old})
		default:
			last = append(last, step{removeIdle, old})
		}
	}
	for i, k := range want {
		at := slices.IndexFunc(have, func(h installed) bool { return h.matches(k) })
		if at < 0 {
			first = append(first, step{add, k})
		}
		if i == 0 && connection && (at < 0 || !have[at].next) {
			last = slices.Insert(last, 0, step{askFor, k})
		}
	}
	return append(first, last...)
}
