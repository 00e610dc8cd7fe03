package datastoretest

import (
	"net/http"
	"sync"
)

// Script is the handler of a server with prepared responses, which a real server would not give.
type Script struct {
	name func(*http.Request) string

	mu      sync.Mutex // guards the rest
	answers []http.HandlerFunc
	seen    []string
}

// NewScript returns a handler that gives the answers in order and repeats the last one. It records name of each
// request.
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

// Requests returns the recorded names of all requests.
func (s *Script) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}
