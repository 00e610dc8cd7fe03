package bgp

import (
	"time"

	"github.com/tortie-net/tortie/internal/bgp/relay"
)

// ForgetMD5 makes this process believe that the kernel can't sign TCP segments.
func ForgetMD5() { checkMD5 = func() error { return relay.ErrNoMD5 } }

// StartSlowly makes Start take at least as long in this process.
func StartSlowly(d time.Duration) { checkMD5 = func() error { time.Sleep(d); return relay.CheckMD5() } }

// AskGoBGP has the next Snapshot ask GoBGP for its table.
func (s *Server) AskGoBGP() {
	s.neighbours.mu.Lock()
	defer s.neighbours.mu.Unlock()
	for _, known := range s.neighbours.all {
		known.mu.Lock()
		known.kept = true
		known.mu.Unlock()
	}
	s.version.Add(1)
}

// AskRelay has the next Snapshot read the table anew, from the relay if it can.
func (s *Server) AskRelay() { s.version.Add(1) }
