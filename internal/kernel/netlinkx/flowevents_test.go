package netlinkx_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
)

// The kernel reports connections that begin and end, whatever NAT does to them, and counts their packets.
func TestFlowEvents(t *testing.T) {
	client, node, pod := router(t)
	if err := node.Conn.CountFlows(sysctl.DefaultRoot); err != nil {
		t.Fatal(err)
	}
	events, err := node.Conn.FlowEvents(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { events.Close() })
	for _, at := range []string{"10.65.0.2:53", "[fd00:65::2]:53"} {
		pod.EchoUDP(t, at)
	}
	for _, to := range []string{"10.96.0.1:53", "[fd00:96::1]:53"} {
		if _, err := client.AskUDP(t, "", to, "hello", 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	name := func(f netlinkx.TrackedFlow) string { return fmt.Sprintf("%s -> %s:%d", f.Client, f.Server, f.Port) }
	// A question is asked again until its answer comes, which is ten bytes longer.
	size := map[string]uint64{"192.0.2.2 -> 10.65.0.2:53": 33, "fd00:2::2 -> fd00:65::2:53": 53}
	counted := func(f netlinkx.TrackedFlow) bool {
		asked, answered, bytes := f.Sent.Packets, f.Received.Packets, size[name(f)]
		return answered > 0 && answered <= asked && f.Sent.Bytes == asked*bytes && f.Received.Bytes == answered*(bytes+10)
	}
	ids := map[string]uint32{}
	if err := node.Conn.Flows(func(f netlinkx.TrackedFlow) {
		if size[name(f)] > 0 && counted(f) && f.SourcePort != 0 {
			ids[name(f)] = f.ID
		} else if size[name(f)] > 0 {
			t.Errorf("%s: %+v", name(f), f)
		}
	}); err != nil || len(ids) != len(size) {
		t.Fatalf("%v: %v are listed", err, ids)
	}
	if _, err := node.Conn.DeleteFlows([]netip.Addr{netip.MustParseAddr("10.65.0.2"), netip.MustParseAddr("fd00:65::2")}); err != nil {
		t.Fatal(err)
	}
	// Reading one event at a time leaves the others for the next time.
	seen := map[string]int{}
	for deadline := time.Now().Add(10 * time.Second); len(seen) < 2*len(size) && time.Now().Before(deadline); {
		handed := 0
		lost, err := events.Read(func(e netlinkx.FlowEvent) bool {
			handed++
			if size[name(e.TrackedFlow)] == 0 {
				return false
			}
			if e.ID != ids[name(e.TrackedFlow)] || e.Ended && !counted(e.TrackedFlow) {
				t.Errorf("%+v", e)
			}
			seen[fmt.Sprint(name(e.TrackedFlow), e.Ended)]++
			return false
		})
		if lost || err != nil || handed > 1 {
			t.Fatalf("lost %v, %v, %d at once", lost, err, handed)
		}
	}
	if len(seen) != 2*len(size) {
		t.Errorf("%v are told", seen)
	}
	for what, n := range seen {
		if n != 1 {
			t.Errorf("%s: %d times", what, n)
		}
	}
}

// Events that the kernel has no room for are reported as lost.
func TestFlowEventsAreLost(t *testing.T) {
	_, node, pod := router(t)
	events, err := node.Conn.FlowEvents(1)
	if err != nil {
		t.Fatal(err)
	}
	conn := pod.ListenUDP(t, "0.0.0.0:0")
	for i := range uint16(30) {
		_, _ = conn.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), 1000+i))
	}
	lost := false
	for !lost {
		if lost, err = events.Read(func(netlinkx.FlowEvent) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	events.Close()
	if _, err := events.Read(func(netlinkx.FlowEvent) bool { return true }); err == nil {
		t.Error("a closed socket is read")
	}
}

// A flood of events leaves no garbage: collecting it would cost as much as reading them.
func TestFlowEventsAllocateNothing(t *testing.T) {
	client, node, _ := router(t)
	events, err := node.Conn.FlowEvents(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { events.Close() })
	from := client.ListenUDP(t, "0.0.0.0:0")
	for port := range uint16(1000) {
		if _, err := from.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(netip.MustParseAddr("10.65.0.3"), 10000+port)); err != nil {
			t.Fatal(err)
		}
	}
	read := 0
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = events.Read(func(netlinkx.FlowEvent) bool { read++; return true })
	runtime.ReadMemStats(&after)
	if allocated := after.Mallocs - before.Mallocs; err != nil || read < 900 || allocated > 100 {
		t.Errorf("%d events, %d allocations, %v", read, allocated, err)
	}
}
