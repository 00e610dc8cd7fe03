package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// flaky answers for each Node except the named one, and counts.
type flaky struct {
	fails string
	asked map[string]int
}

func (f *flaky) Get(_ context.Context, obj api.Resource) error {
	n := obj.(*api.Node)
	f.asked[n.Name]++
	if n.Name == f.fails {
		return errors.New("away")
	}
	n.Status.Addresses = []api.NodeAddress{{Type: "InternalIP", Address: "192.0.2.1"}}
	return nil
}

// An object that could not be read is read again without a request of a pass: less and less often, and no other object
// waits for it.
func TestEvidenceIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &flaky{fails: "far", asked: map[string]int{}}
		e := newEvidence(store)
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- e.run(ctx) }()
		read := func(node string) bool {
			return slices.Equal(e.known(nil).Internal[node], []netip.Addr{netip.MustParseAddr("192.0.2.1")})
		}
		e.want(time.Now(), desired.Unsure{Nodes: []string{"far", "near"}})
		<-e.change
		if !read("near") || read("far") {
			t.Errorf("after the first answer: %v", e.known(nil).Internal)
		}
		waittest.Advance(10 * time.Minute)
		synctest.Wait()
		if n := store.asked["far"]; n < 25 || n > 80 || store.asked["near"] != 1 {
			t.Errorf("requests in 10 minutes: %v", store.asked)
		}
		store.fails = ""
		<-e.change
		if !read("far") {
			t.Errorf("after the second answer: %v", e.known(nil).Internal)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
