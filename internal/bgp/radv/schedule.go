package radv

import "time"

const (
	// minInterval and maxInterval bound the time between unsolicited advertisements (RFC 4861's MinRtrAdvInterval and
	// MaxRtrAdvInterval).
	maxInterval = usualGap
	minInterval = maxInterval / 3
	// The first advertisements follow each other at firstInterval: FRR does the same, so that sessions begin soon.
	firstInterval = time.Second
	first         = 4
	// maxDelay is the longest delay of the answer to a solicitation, minDistance the shortest time between an
	// advertisement and the answer to a solicitation (MAX_RA_DELAY_TIME and MIN_DELAY_BETWEEN_RAS).
	maxDelay    = 500 * time.Millisecond
	minDistance = 3 * time.Second
)

// schedule is when to advertise. Its methods take a random number in [0,1).
type schedule struct {
	left int       // how many of the first advertisements
	sent time.Time // the last advertisement; zero: none
	due  time.Time // the next advertisement
}

// begin restarts the first advertisements: the link, or this node's address on it, is new.
func (s *schedule) begin(now time.Time) { s.left, s.due = first, now }

// advertised sets the due time after an advertisement.
func (s *schedule) advertised(now time.Time, random float64) {
	s.sent = now
	if s.left--; s.left > 0 {
		s.due = now.Add(firstInterval)
		return
	}
	s.left, s.due = 0, now.Add(minInterval+spread(maxInterval-minInterval, random))
}

// solicited brings the due time forward after a solicitation.
func (s *schedule) solicited(now time.Time, random float64) {
	at := now.Add(spread(maxDelay, random))
	if allowed := s.sent.Add(minDistance); at.Before(allowed) {
		at = allowed
	}
	if at.Before(s.due) {
		s.due = at
	}
}

func spread(d time.Duration, random float64) time.Duration { return time.Duration(float64(d) * random) }
