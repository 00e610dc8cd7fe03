package tcpao

import (
	"net/netip"
	"slices"
)

// installed is a key on a socket, of which the kernel does not tell the algorithm in our words.
type installed struct {
	peer          netip.Addr
	send, receive uint8
	is            algorithm
	secret        string
	next          bool   // the peer is asked to use it: RNextKeyID
	current       bool   // this end signs by it
	verified      uint64 // segments of the peer that it has signed
	bad           uint64 // those that have its ID and another MAC
}

func (i installed) matches(k key) bool {
	return i.send == k.send && i.receive == k.receive && i.is == algorithms[k.algorithm] && i.secret == k.secret
}

// op is a kind of step.
type op int

const (
	remove     op = iota // must succeed: the ID is for another key
	add                  // must succeed
	askFor               // the peer to use the key, connections only
	removeIdle           // fails while either end uses the key
)

// step is one change of a socket's keys of a peer. Of a key that is removed only the IDs are known.
type step struct {
	op  op
	key key
}

// plan returns the steps from what a socket has of a peer to what it is to have: what comes is there before anything
// goes.
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
