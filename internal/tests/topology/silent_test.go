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
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// A router that is stopped and forwards nothing any more, while its kernel keeps its connections, costs the packets
// that are sent by it during BFD's detection time, and a tenth of a second more: for FRR's and BIRD's racks, and both
// intervals of the page's table.
func TestSilentRouter(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRacks(t)
	here, there := r.one[0], r.two[0]
	for _, interval := range []time.Duration{300 * time.Millisecond, 50 * time.Millisecond} {
		r.shell(t, fmt.Sprintf("kubectl annotate --overwrite bgppeers.crd.projectcalico.org --all tortie.io/bfd=3x%s", interval), "")
		// A busy machine delays what this measures, and hastens nothing: the agent and the router have processes of their
		// own.
		for _, rack := range []func() bool{
			func() bool {
				return r.silence(t, here, there, interval)
			},
			func() bool {
				return r.silence(t, there, here, interval)
			},
		} {
			for try := 1; !rack(); try++ {
				if try == 3 {
					t.Fatal("a silent router cost too many packets three times")
				}
			}
		}
	}
}

// silence silences the one of a rack's two routers by which packets go, and reports whether no more were lost than may
// be.
func (r *racks) silence(t *testing.T, from, to *meshtest.Node, interval time.Duration) bool {
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
	stream := meshtest.StartStream(t, fmt.Sprintf("%s to %s, 3x%s", from.Name, to.Name, interval), r.pods[from], r.pods[to])
	busy := ways[0]
	if r.passed(t, busy) < r.passed(t, ways[1]) {
		busy = ways[1]
	}
	router := r.tors[busy.name]
	late := waittest.Late(t)
	router.On().Run(t, "nft", "add table inet silent; add chain inet silent forward { type filter hook forward priority -300; policy drop; }")
	router.Signal(syscall.SIGSTOP) // afterwards: what is lost before counts, too
	meshtest.Eventually(t, func() error {
		if p := sessions(t, from)[busy.peer]; !strings.HasPrefix(p.LastError, "BFD is down: Control Detection Time Expired") {
			return fmt.Errorf("%s: the session with %s is %s: %s", from.Name, busy.peer, p.State, p.LastError)
		}
		return nil
	})
	time.Sleep(time.Second)
	count, spare := stream.End(), late()
	most := int((3*interval + 100*time.Millisecond + spare) / time.Millisecond)
	t.Logf("%s is silent: %s; want at most %d lost, as the machine was %s late", busy.name, count, most, spare)
	if count.Lost == 0 {
		t.Error("no packet went by the silent router")
	}
	router.On().Run(t, "nft", "delete table inet silent")
	router.Signal(syscall.SIGCONT)
	bothWays()
	return count.Lost <= most
}

// passed is how many packets have come to a router from its rack in a while.
func (r *racks) passed(t *testing.T, by way) (packets int) {
	t.Helper()
	for _, sign := range []int{-1, 1} {
		var links []struct {
			Stats64 struct{ RX struct{ Packets int } }
		}
		errtest.Must(t, json.Unmarshal([]byte(r.tors[by.name].On().Run(t, "ip", "-s", "-j", "link", "show", by.port)), &links))
		packets += sign * links[0].Stats64.RX.Packets
		if sign < 0 {
			time.Sleep(300 * time.Millisecond)
		}
	}
	return packets
}
