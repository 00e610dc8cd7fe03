package peering

import (
	"cmp"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Past is a BGPPeer as it was last usable, with the BGPFilters that it names. It contains no password.
type Past struct {
	Peer    api.BGPPeer     `json:"peer"`
	Filters []api.BGPFilter `json:"filters,omitempty"`
}

// Past returns the last usable BGPPeers, ordered by name, for Recall in another process.
func (s State) Past() []Past {
	all := make([]Past, 0, len(s.forms)+len(s.past))
	for _, f := range s.forms {
		all = append(all, f.past)
	}
	for _, p := range s.past {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Past) int { return cmp.Compare(a.Peer.Name, b.Peer.Name) })
	return all
}

// Recall returns the State of a process that continues from another one's Past.
func Recall(past []Past) State {
	s := State{past: make(map[string]Past, len(past))}
	for _, p := range past {
		s.past[p.Peer.Name] = p
	}
	return s
}

// recalled returns the form of a BGPPeer of an earlier process, nil if there is none or it is not usable now.
func (s State) recalled(name string, in *Input) *form {
	p, ok := s.past[name]
	if !ok {
		return nil
	}
	known, _ := filters(p.Filters)
	r := resolve(&p.Peer, in, known)
	if len(r.fatal) > 0 || r.pending {
		return nil
	}
	return &r.form
}
