package duties

import (
	"errors"
	"net/http"
	"path"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// An agent starts although a webhook refuses that it completes the ClusterInformation, or does not answer: no program
// needs what is missing. Where there is no ClusterInformation, it is an error.
func TestSetUpWhereAWebhookGuardsTheClusterInformation(t *testing.T) {
	store := labstore.At(t, labtest.NewServer(t).Kubeconfig())
	hook := labtest.NewWebhook(t)
	group := path.Dir(string(labtest.Group(t)))
	errtest.Must(t, store.Create(t.Context(), &labtest.Webhooks{Meta: api.Meta{Name: "guard"},
		Webhooks: hook.Configuration(t, "g.example.com", "Fail", group, "clusterinformations")}))
	waittest.For(t, time.Minute, func() error {
		_ = store.DryRun().Create(t.Context(), &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}})
		if hook.Asked("create clusterinformations (dry run)") == 0 {
			return errors.New("the webhook is not asked")
		}
		return nil
	})
	answers := []labtest.Verdict{{Code: http.StatusMethodNotAllowed, Message: "ClusterInformation is a read-only resource"},
		{Code: http.StatusBadRequest}, {Code: labtest.Silent}}
	want := Cluster{Type: []string{"k8s", "bgp"}}
	setUp := func() error { return SetUp(t.Context(), store, want, found(t, store)) }

	for _, v := range answers {
		hook.Answer(func(string) labtest.Verdict { return v })
		if err := setUp(); err == nil || errors.Is(err, ErrClusterType) || !errtest.Names(err, "g.example.com") {
			t.Errorf("%+v: without a ClusterInformation: %v", v, err)
		}
	}
	hook.Answer(func(string) labtest.Verdict { return labtest.Verdict{} })
	errtest.Must(t, setUp())
	want.Type = append(want.Type, "more")
	for _, v := range answers {
		hook.Answer(func(string) labtest.Verdict { return v })
		if err := setUp(); !errors.Is(err, ErrClusterType) || !errtest.Names(err, "g.example.com") {
			t.Errorf("%+v: of one that is not complete: %v, want %v", v, err, ErrClusterType)
		}
	}
	hook.Answer(func(string) labtest.Verdict { return labtest.Verdict{} })
	errtest.Must(t, setUp())
}
