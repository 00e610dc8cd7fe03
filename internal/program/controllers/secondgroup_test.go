package controllers

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// A ClusterInformation that is ready in the group that is not in use is named, with the remedy, once that group has a
// definition of blocks: Calico's own API server, which has none, shows that of crd.projectcalico.org/v1.
func TestSecondGroupIsNamed(t *testing.T) {
	t.Parallel()
	server := labtest.NewServerOf(t, groups.V1) // definitions come and go
	w := newWorldOf(t, server, groups.In(groups.V1))
	w.deadAPIServer()
	server.Define(t, groups.V3)
	definitions := dynamic.NewForConfigOrDie(w.admin).Resource(
		schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	errtest.Must(t, definitions.Delete(t.Context(), groups.V3.Resource("ipamblocks"), metav1.DeleteOptions{}))
	eventually(t, func() error {
		if has, err := w.store.Defined(t.Context(), groups.V3); err != nil || has != "" {
			return fmt.Errorf("definition of %q, %w", has, err)
		}
		return nil
	})
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: new(true)}}
	errtest.Must(t, w.store.In(groups.V3).Create(t.Context(), info))
	events := func() []string {
		list, err := w.core.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=SecondGroupReady"})
		errtest.Must(t, err)
		var texts []string
		for i := range list.Items {
			texts = append(texts, list.Items[i].InvolvedObject.Kind+": "+list.Items[i].Message)
		}
		return texts
	}

	p := w.start("one", "", "RECONCILER_PERIOD=1s")
	leads(t, p)
	p.passes(3)
	if got := events(); len(got) > 0 {
		t.Errorf("of a group without blocks: %q", got)
	}
	p.kill()
	server.Define(t, groups.V3)
	leads(t, w.start("two", "", "RECONCILER_PERIOD=1s")) // and looks at once
	eventually(t, func() error {
		if got := events(); len(got) != 1 {
			return fmt.Errorf("Events %q", got)
		}
		return nil
	})
	for _, want := range []string{"ClusterInformation: ", "kubectl delete clusterinformations.crd.projectcalico.org default",
		"clusterinformations.projectcalico.org", "ipamblocks.crd.projectcalico.org,ipamblocks.projectcalico.org"} {
		if got := events()[0]; !strings.Contains(got, want) {
			t.Errorf("the Event %q lacks %q", got, want)
		}
	}
}

// deadAPIServer registers an API server of Calico's that no pod serves, as one that was left behind: passes go on
// without its answer.
func (w *world) deadAPIServer() {
	w.t.Helper()
	services := dynamic.NewForConfigOrDie(w.admin).Resource(
		schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	_, err := services.Create(w.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v3.projectcalico.org"},
		"spec": map[string]any{
			"group": "projectcalico.org", "version": "v3", "groupPriorityMinimum": 1500, "versionPriority": 200, "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": "calico-apiserver", "name": "calico-api"},
		},
	}}, metav1.CreateOptions{})
	errtest.Must(w.t, err)
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	eventually(w.t, func() error {
		if err := w.store.In(groups.V3).Get(w.t.Context(), info); !errors.Is(err, datastore.ErrUnavailable) {
			return fmt.Errorf("the API server without pods answers: %w", err)
		}
		return nil
	})
	p := w.start("zero", "", "RECONCILER_PERIOD=1s")
	leads(w.t, p)
	p.passes(3)
	if s, err := p.status(); err != nil || s.Error != "" {
		w.t.Errorf("beside an API server of Calico's that does not answer: %q (%v)", s.Error, err)
	}
	p.kill()
	errtest.Must(w.t, services.Delete(w.t.Context(), "v3.projectcalico.org", metav1.DeleteOptions{}))
}
