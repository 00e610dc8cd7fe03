package datastoretest

import (
	"net/http"
	"sync"
)

// Script is the handler of a server that answers what a test tells it to: what a real one cannot be made to do at will.
type Script struct {
	name func(*http.Request) string

	mu      sync.Mutex // guards the rest
	answers []http.HandlerFunc
	seen    []string
}

// NewScript gives the answers in order, the last one for ever. It keeps of each request what name returns.
func NewScript(name func(*http.Request) string, answers ...http.HandlerFunc) *Script {
	return &Script{name: name, answers: answers}
}

func (s *Script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, s.name(r))
	answer := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	s.mu.Unlock()
	answer(w, r)
}

// Requests returns the names of all requests so far.
func (s *Script) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}
