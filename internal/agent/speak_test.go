package agent

import (
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
)

// A path that a peer does not announce is gone only after the peer has sent its whole table.
func TestToldAll(t *testing.T) {
	now := time.Unix(10_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, c := range map[string]struct {
		peer bgp.PeerStatus
		want bool
	}{
		"no session": {bgp.PeerStatus{State: bgp.Active, Since: ago(time.Hour)}, false},
		"its table has ended": {
			bgp.PeerStatus{State: bgp.Established, Since: ago(settleTime), SaysEnd: true, TableEnded: ago(workInTime)}, true,
		},
		"its table has ended just now": {
			bgp.PeerStatus{State: bgp.Established, Since: ago(time.Minute), SaysEnd: true, TableEnded: ago(workInTime / 2)}, false,
		},
		"it may be a reflector that came up": {
			bgp.PeerStatus{State: bgp.Established, Since: ago(2 * time.Second), SaysEnd: true, TableEnded: ago(2 * time.Second)}, false,
		},
		"it is busy":                           {bgp.PeerStatus{State: bgp.Established, Since: ago(time.Minute), SaysEnd: true}, false},
		"it does not keep its word":            {bgp.PeerStatus{State: bgp.Established, Since: ago(holdTime), SaysEnd: true}, true},
		"it never says, and came up just now":  {bgp.PeerStatus{State: bgp.Established, Since: ago(time.Second)}, false},
		"it never says, and has had the time":  {bgp.PeerStatus{State: bgp.Established, Since: ago(settleTime)}, true},
		"its table had ended, and it has gone": {bgp.PeerStatus{State: bgp.Idle, Since: ago(time.Second), SaysEnd: true}, false},
	} {
		if got := tableComplete(c.peer, now); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// Routes of an earlier agent stay until the slowest peer has sent its whole table, but no longer than a graceful
// restart.
func TestSettling(t *testing.T) {
	begun := time.Unix(10_000, 0)
	slow := bgp.PeerStatus{State: bgp.Established, Since: begun, SaysEnd: true}
	quick := slow
	quick.TableEnded = begun
	b := bgpState{begun: begun, inherited: true}
	at := func(after time.Duration, want bool, peers ...bgp.PeerStatus) {
		t.Helper()
		b.watch(begun.Add(after), peers)
		if got := b.settling(begun.Add(after)); got != want {
			t.Errorf("after %v: settling is %t, want %t", after, got, want)
		}
	}
	at(0, true) // no peers are known
	at(time.Minute, true, quick, slow)
	slow.TableEnded = begun.Add(time.Minute)
	at(time.Minute+workInTime, true, quick, slow)
	if next := b.nextLook(begun.Add(time.Minute + workInTime)); next != settleTime {
		t.Errorf("the next look is after %v, want %v", next, settleTime)
	}
	at(time.Minute+workInTime+settleTime+1, false, quick, slow)

	b = bgpState{begun: begun}
	slow.TableEnded = time.Time{}
	at(holdTime, true, slow)
	at(holdTime+1, false, slow)
}
