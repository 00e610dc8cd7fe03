package cluster

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tortie-net/tortie/internal/api/groups"
)

// clock counts the seconds that a test lets pass.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func (c *clock) pass() time.Time {
	c.at = c.at.Add(time.Second)
	return c.at
}

func thing(annotations map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: annotations}}
}

// taken sends an event and returns once what it proves is noted.
func taken(t *testing.T, _ *streams, from *watch.FakeWatcher, to watch.Interface, e watch.Event) {
	t.Helper()
	go from.Action(e.Type, e.Object)
	select {
	case <-to.ResultChan():
	case <-time.After(20 * time.Second):
		t.Fatal("the event never came")
	}
	// The next thing that the stream does is to note the event; a second one could not be sent before.
	go from.Action(watch.Error, thing(nil))
	<-to.ResultChan()
}

func keep(runtime.Object) {}

func ended(t *testing.T, w watch.Interface) {
	t.Helper()
	for range w.ResultChan() {
	}
}

func TestStreams(t *testing.T) {
	c := &clock{at: time.Unix(1000, 0)}
	s := &streams{now: c.now, wanted: []string{"Node", "IPPool"}, open: map[string]*stream{}}
	confirmed := func(what string, want time.Time) {
		t.Helper()
		if got := s.Confirmed(); !got.Equal(want) {
			t.Errorf("%s: confirmed %v, want %v", what, got, want)
		}
	}
	event := watch.Event{Type: watch.Modified, Object: thing(nil)}

	nodes := watch.NewFake()
	nodesOut := s.follow("Node", "", nodes, false, keep)
	taken(t, s, nodes, nodesOut, event)
	confirmed("one of two is open", time.Time{})

	pools := watch.NewFake()
	poolsOut := s.follow("IPPool", groups.V1, pools, true, keep)
	c.pass()
	taken(t, s, pools, poolsOut, event)
	confirmed("the second is still in the list that it begins with", time.Time{})
	taken(t, s, pools, poolsOut,
		watch.Event{Type: watch.Bookmark, Object: thing(map[string]string{metav1.InitialEventsAnnotationKey: "true"})})
	complete := c.at
	confirmed("both are complete", complete)

	at := c.pass()
	confirmed("nothing was heard", complete)
	taken(t, s, nodes, nodesOut, event)
	confirmed("an event on one", at)
	at = c.pass()
	taken(t, s, pools, poolsOut, watch.Event{Type: watch.Bookmark, Object: thing(nil)})
	confirmed("a bookmark", at)
	c.pass()
	go nodes.Action(watch.Error, thing(nil))
	<-nodesOut.ResultChan()
	confirmed("an error is no proof", at)
	s.confirm(at.Add(-time.Second))
	confirmed("an older proof", at)

	// The API server ends a watch: until the next is open, nothing is proved.
	pools.Stop()
	ended(t, poolsOut)
	c.pass()
	taken(t, s, nodes, nodesOut, event)
	s.confirm(c.at)
	confirmed("one has ended", at)
	if s.allOpen() {
		t.Error("all open, although one has ended")
	}
	pools = watch.NewFake()
	next := s.follow("IPPool", groups.V1, pools, false, keep)
	confirmed("it is open again", c.at)

	// client-go stops a watch and opens the next: the end of the old one does not count against the new one.
	newest := s.follow("IPPool", groups.V1, watch.NewFake(), false, keep)
	next.Stop()
	ended(t, next)
	if !s.allOpen() {
		t.Error("the end of an old watch closed the new one")
	}
	// A watch in the group that Calico's objects have left proves nothing.
	s.group = groups.In(groups.V3)
	if s.allOpen() {
		t.Error("all open, although the pools are followed in another group")
	}
	s.group = nil
	newest.Stop()
	ended(t, newest)
	nodesOut.Stop()
	nodesOut.Stop() // twice is fine
	ended(t, nodesOut)
	if s.allOpen() {
		t.Error("all open at the end")
	}
}
