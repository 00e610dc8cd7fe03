package cluster

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// policy tests a NetworkPolicy on pods of all nodes: the pods that it names reach them, others do not until it is
// deleted.
func (w *world) policy(t *testing.T) {
	w.apply(t, "web.yaml")
	w.apply(t, "policy.yaml")
	w.rolledOut(t, "deployment/web")
	denied := w.deniedTo(t, nodes...)
	w.allowed(t)
	denied.none(t)
	w.Kubectl(t, "delete", "networkpolicy", "guarded")
	for _, p := range w.readyPods(t, "traffic", len(nodes)) {
		for _, door := range denied.doors {
			serves(t, w.inside(t, &p).NS, door, names(w.readyPods(t, "guarded", 3))...)
		}
	}
}

// allowed fails the test unless each pod of web reaches the guarded pods of all nodes, by their addresses and by their
// Service.
func (w *world) allowed(t *testing.T) {
	t.Helper()
	guarded := w.readyPods(t, "guarded", 3)
	for _, p := range w.readyPods(t, "web", 6) {
		from := w.inside(t, &p)
		for _, to := range guarded {
			for _, ip := range to.Status.PodIPs {
				serves(t, from.NS, net.JoinHostPort(ip.IP, "80"), to.Name)
			}
		}
		for _, door := range w.doors(t) {
			serves(t, from.NS, door, names(guarded)...)
		}
	}
}

// doors returns where the Service of the guarded pods listens, in both families.
func (w *world) doors(t *testing.T) (all []string) {
	t.Helper()
	service, err := w.client.CoreV1().Services(namespace).Get(t.Context(), "guarded", metav1.GetOptions{})
	errtest.Must(t, err)
	for _, ip := range service.Spec.ClusterIPs {
		all = append(all, net.JoinHostPort(ip, "80"))
	}
	return all
}

// forbidden are requests for a Service that a policy denies, one after the other, from the traffic pods of some nodes.
type forbidden struct {
	doors  []string
	askers []*asker
	stop   context.CancelFunc
	asking sync.WaitGroup
}

// asker requests the page of one address from one pod.
type asker struct {
	name  string
	asked atomic.Int64 // requests that have ended
	got   atomic.Value // the page of one that was served
}

// deniedTo begins to request the page of the guarded pods, which a policy denies to the traffic pods of these nodes.
func (w *world) deniedTo(t *testing.T, nodes ...string) *forbidden {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := &forbidden{doors: w.doors(t), stop: cancel}
	t.Cleanup(func() { cancel(); d.asking.Wait() })
	for _, node := range nodes {
		from := w.trafficOn(t, node)
		for _, door := range d.doors {
			a := &asker{name: fmt.Sprintf("http://%s from %s", door, node)}
			d.askers = append(d.askers, a)
			d.asking.Go(func() {
				for ; ctx.Err() == nil; a.asked.Add(1) {
					if page, err := get(ctx, from.NS, door); err == nil {
						a.got.Store(page)
					}
				}
			})
		}
	}
	return d
}

// none ends the requests, after one from each pod that began now. The test fails if one was served, at any time.
func (d *forbidden) none(t *testing.T) {
	t.Helper()
	seen := make([]int64, len(d.askers)) // of all before the first wait: each request takes seconds
	for i, a := range d.askers {
		seen[i] = a.asked.Load()
	}
	for i, a := range d.askers {
		meshtest.Within(t, patience, func() error {
			if a.asked.Load() < seen[i]+2 {
				return fmt.Errorf("%s: %d requests have ended, %d before", a.name, a.asked.Load(), seen[i])
			}
			return nil
		})
	}
	d.stop()
	d.asking.Wait()
	for _, a := range d.askers {
		if page := a.got.Load(); page != nil {
			t.Errorf("%s was served %q, although a policy denies it", a.name, page)
		}
		t.Logf("%s: %d requests, none of which may be served", a.name, a.asked.Load())
	}
}
