package topology

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// A router that is stopped and forwards nothing, while its kernel keeps its connections, loses packets until BFD's
// detection time is over, and none afterwards: for FRR's and BIRD's racks, and both intervals of the page's table.
func TestSilentRouter(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRacks(t)
	here, there := r.one[0], r.two[0]
	for _, interval := range []time.Duration{300 * time.Millisecond, 50 * time.Millisecond} {
		r.shell(t, fmt.Sprintf("kubectl annotate --overwrite bgppeers.crd.projectcalico.org --all tortie.io/bfd=3x%s", interval), "")
		r.silence(t, here, there, interval)
		r.silence(t, there, here, interval)
	}
}

// silence stops the router of a rack that carries the packets, until BFD has detected it.
func (r *racks) silence(t *testing.T, from, to *meshtest.Node, interval time.Duration) {
	t.Helper()
	ways := r.ways(t, from, false)
	bothWays := func() {
		t.Helper()
		meshtest.Eventually(t, func() error {
			for _, w := range ways {
				p := sessions(t, from)[w.peer]
				if p.State != "Established" || p.BFD == nil || p.BFD.State != "Up" || p.BFD.Detection != (3*interval).Seconds() {
					return fmt.Errorf("%s: the session with %s is %s, BFD %+v: want detection in 3 x %s; %s", from.Name, w.peer, p.State,
						p.BFD, interval, p.LastError)
				}
			}
			return nil
		})
		leads(t, from.NS, from.Name, blockOf(to), ways[0].kernel(), ways[1].kernel())
	}
	bothWays()
	before := [2]int{r.received(t, ways[0]), r.received(t, ways[1])}
	stream := meshtest.StartStream(t, fmt.Sprintf("%s to %s, 3x%s", from.Name, to.Name, interval), r.pods[from], r.pods[to])
	stream.Await(t, 300, meshtest.Patience)
	busy, other := ways[0], ways[1]
	if r.received(t, busy)-before[0] < r.received(t, other)-before[1] {
		busy, other = other, busy
	}
	router := r.tors[busy.name]
	router.On().Run(t, "nft", "add table inet silent; add chain inet silent forward { type filter hook forward priority -300; policy drop; }")
	router.Signal(syscall.SIGSTOP) // after the rule: packets lost before it stops count, too
	meshtest.Eventually(t, func() error {
		if p := sessions(t, from)[busy.peer]; !strings.HasPrefix(p.LastError, "BFD is down: Control Detection Time Expired") {
			return fmt.Errorf("%s: the session with %s is %s: %s", from.Name, busy.peer, p.State, p.LastError)
		}
		return nil
	})
	leads(t, from.NS, from.Name, blockOf(to), other.kernel())
	found := meshtest.Traffic{meshtest.StartStream(t, "once it is found", r.pods[from], r.pods[to])}
	found.Onward(t, time.Second)
	found.Intact(t)
	count := stream.End()
	t.Logf("%s is silent: %s", busy.name, count)
	if count.Lost == 0 {
		t.Error("no packet went by the silent router")
	}
	router.On().Run(t, "nft", "delete table inet silent")
	router.Signal(syscall.SIGCONT)
	bothWays()
}

// received returns how many packets a router has received from its rack.
func (r *racks) received(t *testing.T, by way) int {
	t.Helper()
	var links []struct {
		Stats64 struct{ RX struct{ Packets int } }
	}
	errtest.Must(t, json.Unmarshal([]byte(r.tors[by.name].On().Run(t, "ip", "-s", "-j", "link", "show", by.port)), &links))
	return links[0].Stats64.RX.Packets
}
