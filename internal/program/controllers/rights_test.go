package controllers

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// elsewhere are the rights that no test here uses.
var elsewhere = []string{
	// Of `kube-controllers ipam`, which runs as the same account: tested in internal/controllers/ipamtool.
	account + " get ipamconfigs.crd.projectcalico.org",
	account + " create blockaffinities.crd.projectcalico.org",
	account + " get ipamhandles.crd.projectcalico.org",
	account + " create ipamhandles.crd.projectcalico.org",
	account + " update ipamhandles.crd.projectcalico.org",
	// For an Event that is repeated after a while: tested in internal/cluster/events.
	account + " patch events.",
}

// record holds the requests of the controllers in all tests, and the rights of the chart.
type record struct {
	mu      sync.Mutex // guards all below
	granted map[string]bool
	asked   map[string]bool
}

var rights = record{granted: map[string]bool{}, asked: map[string]bool{}}

// taken returns an audited server, which an earlier test may have used.
func taken(t *testing.T, in groups.Group) *labtest.Server {
	t.Helper()
	return labtest.TakeServer(t, labtest.Kind{Group: in, Audited: true})
}

// audited returns a server that records its answers to the controllers. A request without a right in the chart fails
// the test.
func audited(t *testing.T) *labtest.Server {
	t.Helper()
	return auditedOf(t, labtest.Group(t))
}

// auditedOf is audited for a server with the definitions of a group.
func auditedOf(t *testing.T, in groups.Group) *labtest.Server {
	t.Helper()
	server := taken(t, in)
	granted := labtest.Rules(t)
	t.Cleanup(func() { rights.add(t, granted, server.AuditedRequests(t)) })
	return server
}

func (r *record) add(t *testing.T, granted map[string]bool, asked []labtest.AuditedRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for rule := range granted {
		if strings.HasPrefix(rule, account+" ") {
			r.granted[rule] = true
		}
	}
	for _, a := range asked {
		r.asked[labtest.Twin(a.Rule())] = true
		if a.Forbidden && a.Account == account {
			t.Errorf("the chart has no right for: %s %s/%s", a.Rule(), a.Namespace, a.Name)
		}
	}
}

// check returns the process's exit code after all tests of make test-all: each right was used.
func (r *record) check() int {
	maps.DeleteFunc(r.granted, func(rule string, _ bool) bool {
		rule = labtest.Twin(rule)
		// An API server that does not stream lists into watches receives requests for both.
		watched := r.asked[strings.Replace(rule, " list ", " watch ", 1)]
		return r.asked[rule] || watched || slices.Contains(elsewhere, rule)
	})
	if len(r.granted) == 0 {
		return 0
	}
	fmt.Fprintf(os.Stderr, "nobody uses:\n%s\n", strings.Join(slices.Sorted(maps.Keys(r.granted)), "\n"))
	return 1
}
