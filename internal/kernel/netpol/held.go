package netpol

import (
	"fmt"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// held is a link that CloseOther has closed: it belongs to a pod that the Ruleset may not name yet. It stays closed
// until the Ruleset names that pod for the link, or for the next pod if that comes first. There is no timeout: the
// policies of the former pod never become right.
type held struct {
	comment string
	since   time.Time
}

// holdTime is longer than an ADD may take. If a link does not exist so long after it was closed, its ADD has failed.
const holdTime = 10 * time.Minute

// element returns the element of a held link. Without policies in the cluster it drops nothing.
func (h held) element(link string, closed bool) nft.Element {
	e := nft.Element{First: nft.LinkKey(link), Verdict: nft.Accept, Comment: h.comment}
	if closed {
		e.Verdict = nft.Drop
	}
	return e
}

// hold records the links that CloseOther has closed, and forgets links that an ADD has given back. A known one stays
// held if its elements were deleted by hand.
func (e *Engine) hold(s *state) {
	for _, links := range s.links {
		for name, element := range links {
			switch {
			case element.Comment == givenBack:
				delete(e.held, name)
			case strings.HasPrefix(element.Comment, closedFor("")) && e.held[name].comment != element.Comment:
				e.held[name] = held{element.Comment, time.Now()}
			}
		}
	}
}

// forget drops held links that do not exist: the plugin that closed them has died or failed, and the next ADD for the
// name closes it again.
func (e *Engine) forget() error {
	var conn *netlinkx.Conn
	for link, h := range e.held {
		if time.Since(h.since) < holdTime {
			continue
		}
		if conn == nil {
			var err error
			if conn, err = e.open(); err != nil {
				return fmt.Errorf("look for links that are closed: %w", err)
			}
			defer conn.Close()
		}
		if _, err := conn.LinkByName(link); netlinkx.IsNotExist(err) {
			delete(e.held, link)
		}
	}
	return nil
}

func (e *Engine) open() (*netlinkx.Conn, error) {
	if e.ns == nil {
		return netlinkx.Open()
	}
	return netlinkx.OpenAt(e.ns)
}
