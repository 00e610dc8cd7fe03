package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// guarded is a cluster with a webhook for its writes.
type guarded struct {
	t    *testing.T
	m    *Mover
	hook *labtest.Webhook
	of   *labtest.Webhooks
}

// guard registers the webhook, and returns when the API server asks it. It takes the place of an earlier registration.
func (g *guarded) guard(failurePolicy, group string, resources ...string) {
	g.t.Helper()
	g.free()
	g.of = &labtest.Webhooks{Meta: api.Meta{Name: "guard"},
		Webhooks: g.hook.Configuration(g.t, "g.example.com", failurePolicy, group, resources...)}
	errtest.Must(g.t, g.m.Stores[groups.V1].Create(g.t.Context(), g.of))
	before := g.hook.Asked("create " + resources[0] + " (dry run)")
	waittest.For(g.t, time.Minute, func() error {
		_ = g.probe(group, resources[0])
		if g.hook.Asked("create "+resources[0]+" (dry run)") == before {
			return errors.New("the webhook is not asked")
		}
		return nil
	})
}

// free removes the registration.
func (g *guarded) free() {
	g.t.Helper()
	if g.of != nil {
		errtest.Must(g.t, g.m.Stores[groups.V1].Delete(g.t.Context(), g.of))
	}
	g.of = nil
}

// probe tries to create an object.
func (g *guarded) probe(group, resource string) error {
	o := &object{Meta: api.Meta{Name: "probe"}, Spec: json.RawMessage("{}")}
	for _, of := range append(kinds, information) {
		if of.Plural == resource {
			o.of = of
		}
	}
	if o.of.Namespaced {
		o.Namespace = "default"
	}
	for _, in := range groups.All {
		if strings.HasPrefix(string(in), group+"/") {
			return g.m.Stores[in].DryRun().Create(g.t.Context(), o)
		}
	}
	return errors.New("no such group")
}

// start starts a move, and returns its output.
func (g *guarded) start(to groups.Group) (string, error) {
	var said strings.Builder
	m := *g.m
	m.Say = func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) }
	err := m.Start(g.t.Context(), to)
	return said.String(), err
}

// idle fails unless a refused start has changed nothing.
func (g *guarded) idle(before map[string]seen) {
	g.t.Helper()
	says(g.t, g.m, idle, groups.Ready, groups.Absent)
	same(g.t, "after a start that was refused", before, look(g.t, g.m.Stores[groups.V1], groups.V1))
	same(g.t, "in the target", nil, look(g.t, g.m.Stores[groups.V3], groups.V3))
}

// answers has the webhook answer the requests of a name by v, and allow all others.
func (g *guarded) answers(v labtest.Verdict, to string) {
	g.hook.Answer(func(request string) labtest.Verdict {
		if request == to {
			return v
		}
		return labtest.Verdict{}
	})
}

var (
	readOnly = labtest.Verdict{Code: http.StatusMethodNotAllowed, Message: "ClusterInformation is a read-only resource"} // as Calico's
	without  = labtest.Verdict{Code: http.StatusBadRequest, Message: "because"}                                          // a status
	silent   = labtest.Verdict{Code: labtest.Silent}
)

// TestWebhooks: a webhook that refuses a write of the move, or does not answer, is reported before anything changes. If
// that happens only later, the move stops, and can be resumed or aborted.
func TestWebhooks(t *testing.T) {
	m := mover(t, both(t).Kubeconfig())
	fill(t, m.Stores[groups.V1])
	g := &guarded{t: t, m: m, hook: labtest.NewWebhook(t)}
	before := look(t, m.Stores[groups.V1], groups.V1)
	const v1, v3, refused = "crd.projectcalico.org", "projectcalico.org", "1 projectcalico.org/v3 webhook configuration"
	for _, c := range []struct {
		failure, group, resource string
		verdict                  labtest.Verdict
		on                       string
		said, fails              string
	}{
		{"Ignore", v3, "clusterinformations", readOnly, "create", "ClusterInformation default g.example.com read-only", refused},
		{"Fail", v3, "clusterinformations", silent, "create", "ClusterInformation default g.example.com deadline", refused},
		{"Fail", v1, "clusterinformations", without, "update", "lock of crd.projectcalico.org/v1 g.example.com because", refused},
		{"Fail", v3, "globalnetworkpolicies", without, "create", "GlobalNetworkPolicy security.all g.example.com because", refused},
		{"Fail", v3, "globalnetworkpolicies", silent, "create", "", "globalnetworkpolicies g.example.com deadline"},
	} {
		g.guard(c.failure, c.group, c.resource)
		g.answers(c.verdict, c.on+" "+c.resource+" (dry run)")
		if said, err := g.start(groups.V3); !errtest.Names(err, c.fails) || !errtest.Has(said, c.said) {
			t.Errorf("%+v: %v; it said:\n%s", c, err, said)
		}
		g.idle(before)
		g.hook.Answer(allow)
	}

	pace := passPace
	passPace = wait.Backoff{First: time.Millisecond, Most: time.Millisecond}
	t.Cleanup(func() { passPace = pace })
	g.answers(without, "create globalnetworkpolicies")
	if _, err := g.start(groups.V3); !errtest.Names(err, "g.example.com because locked abort") {
		t.Errorf("refused after the lock: %v", err)
	}
	says(t, m, copying, groups.Locked, groups.Absent)
	errtest.Must(t, m.Abort(t.Context()))
	g.idle(before)
	g.guard("Ignore", v3, "clusterinformations")
	g.answers(readOnly, "create clusterinformations")
	if _, err := g.start(groups.V3); !errtest.Names(err, "g.example.com read-only locked abort") {
		t.Errorf("refused at the switch: %v", err)
	}
	says(t, m, copying, groups.Locked, groups.Absent)
	g.answers(silent, "create clusterinformations")
	_, err := g.start(groups.V3)
	errtest.Must(t, err) // failurePolicy Ignore
	says(t, m, moved, groups.Locked, groups.Ready)
	g.back()
}

func allow(string) labtest.Verdict { return labtest.Verdict{} }

// back removes what a move has left, and tries the way back, while webhooks refuse.
func (g *guarded) back() {
	t := g.t
	agents(t, g.m)
	m := *g.m
	m.answer = time.Minute
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go answer(ctx, m.Stores[groups.V3], "one", "two")
	g.guard("Fail", "crd.projectcalico.org", "globalnetworkpolicies")
	g.answers(without, "delete globalnetworkpolicies")
	if err := m.Finish(t.Context()); !errtest.Names(err, "remove globalnetworkpolicies g.example.com because") {
		t.Errorf("finish, while a webhook refuses: %v", err)
	}
	g.hook.Answer(allow)
	errtest.Must(t, m.Finish(t.Context()))
	same(t, "after finish", nil, look(t, m.Stores[groups.V1], groups.V1))

	g.guard("Ignore", "projectcalico.org", "clusterinformations")
	g.answers(readOnly, "update clusterinformations (dry run)")
	said, err := g.start(groups.V1)
	if !errtest.Names(err, "1 crd.projectcalico.org/v1 webhook") || !errtest.Has(said, "lock of projectcalico.org/v3 g.example.com") {
		t.Errorf("the way back: %v; it said:\n%s", err, said)
	}
	says(t, g.m, moved, groups.Locked, groups.Ready)
	same(t, "in v1", nil, look(t, m.Stores[groups.V1], groups.V1))
}
