package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// The real API server accepts the events, counts them on, and its refusals are reported.
func TestEventsOnARealServer(t *testing.T) {
	admin := labtest.RESTConfig(t)
	store, err := cluster.OpenStore(cluster.Server{Config: admin, Group: labtest.Current(t)})
	errtest.Must(t, err)
	pool := api.ObjectReference{APIVersion: string(labtest.Group(t)), Kind: "IPPool", Name: "events-pool"}
	aNode := api.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "events-node", UID: "1c7a2b1e-0000-4000-8000-000000000000"}
	secret := api.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: "kube-system", Name: "bgp-password"}
	for _, try := range []int{1, 2} { // the second agent goes on with the events of the first
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		r := events.New(store, events.Source{Component: "tortie-node", Host: "events-node"}, labtest.Current(t), log)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		for _, about := range []api.ObjectReference{pool, aNode, secret} {
			r.Warn(about, "EventsTest", "something is wrong with "+about.String()+strings.Repeat(" é", 600))
		}
		waittest.Until(t, 30*time.Second, "three are written", func() bool { written, _ := r.Counts(); return written == 3 })
		if _, dropped := r.Counts(); dropped > 0 {
			t.Fatalf("%d dropped", dropped)
		}
		cancel()
		<-ended
		for about, namespace := range map[api.ObjectReference]string{pool: "default", aNode: "default", secret: "kube-system"} {
			found := eventsAbout(t, admin, namespace, about.Name)
			if len(found) != 1 || found[0].Count != try || found[0].Reason != "EventsTest" || found[0].Type != "Warning" ||
				found[0].InvolvedObject != about || found[0].ReportingComponent != "tortie-node" || found[0].Source.Host != "events-node" {
				t.Errorf("try %d: %+v", try, found)
			}
		}
	}
	elsewhere := &events.Event{Meta: api.Meta{Name: "elsewhere", Namespace: "default"}, InvolvedObject: secret}
	if err := store.Create(t.Context(), elsewhere); err == nil || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("an event that the server refuses: %v", err)
	}
	none := &events.Event{Meta: api.Meta{Name: "none", Namespace: "default"}}
	if err := store.MergePatch(t.Context(), none, map[string]int{"count": 1}); !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("an event that is not there: %v", err)
	}
}

// eventsAbout asks as kubectl describe does.
func eventsAbout(t *testing.T, cfg *rest.Config, namespace, name string) []events.Event {
	t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	errtest.Must(t, err)
	response, err := client.Get(cfg.Host + "/api/v1/namespaces/" + namespace + "/events?fieldSelector=involvedObject.name%3D" + name)
	errtest.Must(t, err)
	defer response.Body.Close()
	var list struct{ Items []events.Event }
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", response.Status, err)
	}
	return list.Items
}

// The agent's own rights are enough.
func TestTheAgentMayWriteEvents(t *testing.T) {
	store, err := cluster.OpenStore(cluster.Server{Config: labtest.As(t, "tortie-node"), Group: labtest.Current(t)})
	errtest.Must(t, err)
	e := &events.Event{
		Meta: api.Meta{Name: "rights.1", Namespace: "default"}, InvolvedObject: api.ObjectReference{Kind: "Node", Name: "rights"},
		Type: "Warning", Reason: "Test", Count: 1, FirstTimestamp: time.Now(), LastTimestamp: time.Now(),
	}
	if err := store.Create(t.Context(), e); err != nil {
		t.Error(err)
	}
	if err := store.MergePatch(t.Context(), e, map[string]int{"count": 2}); err != nil || e.Count != 2 {
		t.Errorf("count %d, %v", e.Count, err)
	}
}
