package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/controllers"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestPrograms: programs that would not follow a move prevent its begin, and its end, in the namespaces of a cluster's
// own programs. What tenants create elsewhere counts for nothing.
func TestPrograms(t *testing.T) {
	m := mover(t, both(t).Kubeconfig())
	fill(t, m.Stores[groups.V1])
	create := func(o *object) *object {
		t.Helper()
		errtest.Must(t, m.Stores[groups.V1].Create(t.Context(), o))
		return o
	}
	namespaces := api.Type{Version: "v1", Kind: "Namespace", Plural: "namespaces"}
	for _, name := range []string{"tenant", "calico-system", "release"} {
		create(&object{of: namespaces, Meta: api.Meta{Name: name}})
	}
	program := func(of api.Type, namespace, name string) *object {
		return create(&object{of: of, Meta: api.Meta{Namespace: namespace, Name: name}, Spec: json.RawMessage(
			`{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"c"}]}}}`)})
	}
	checked := func(what, words string, made ...*object) {
		t.Helper()
		s, _, err := m.read(t.Context())
		errtest.Must(t, err)
		if err := m.check(t.Context(), s, groups.V3); words == "" && err != nil || words != "" && !errtest.Names(err, words) {
			t.Errorf("%s: %v, want an error that names %q", what, err, words)
		}
		for _, o := range made {
			removed(t, m, o)
		}
	}
	set := `{"containers":[{"name":"c","image":"c","env":[{"name":"CALICO_API_GROUP","value":"crd.projectcalico.org/v1"}]}]}`
	checked("a tenant's", "", program(controllers.Deployments, "tenant", controllers.CalicoControllers),
		program(daemonSets, "tenant", "calico-node"), ofTortie(t, m, "tenant", "set", "node", set))
	for _, c := range calicos {
		for _, namespace := range []string{"kube-system", "calico-system", "release"} {
			checked(c.name, namespace+"/"+c.name, program(c.of, namespace, c.name))
		}
	}
	service := &object{of: apiServices, Meta: api.Meta{Name: "v3.projectcalico.org"}}
	errtest.Must(t, m.Stores[groups.V1].Get(t.Context(), service))
	service.of = apiServices
	service.Labels = nil // by which the API server keeps it as one of definitions
	service.Spec = json.RawMessage(`{"group":"projectcalico.org","version":"v3","groupPriorityMinimum":1500,"versionPriority":200,
		"insecureSkipTLSVerify":true,"service":{"namespace":"calico-system","name":"calico-api"}}`)
	errtest.Must(t, m.Stores[groups.V1].Update(t.Context(), service))
	waittest.For(t, time.Minute, func() error { // until the API server passes the group on
		_, _, err := m.read(t.Context())
		if words := "calico-system/calico-api apiservers.operator.tigera.io v3.projectcalico.org"; !errtest.Names(err, words) {
			return fmt.Errorf("an API server without pods: %w, want an error that names %s", err, words)
		}
		return nil
	})
	if err := m.check(t.Context(), state{}, groups.V3); !errtest.Names(err, "calico-system/calico-api") {
		t.Errorf("an API server: %v", err)
	}
	removed(t, m, service)
	waittest.For(t, time.Minute, func() error { // until the API server serves its definitions again
		_, _, err := m.read(t.Context())
		return err
	})
	checked("nothing", "")
	for version, other := range map[string]string{"v1": "v1beta1", "v1beta1": "v1"} {
		checked("Calico's migration of "+version, "v1-to-v3", migrationOf(t, m, version, other)...)
	}
	atTheEnd(t, m, set)
}

// removed deletes an object whose status may change meanwhile.
func removed(t *testing.T, m *Mover, o *object) {
	t.Helper()
	of := o.of
	waittest.For(t, time.Minute, func() error {
		err := m.Stores[groups.V1].Get(t.Context(), o)
		if o.of = of; err != nil {
			return err
		}
		return m.Stores[groups.V1].Delete(t.Context(), o)
	})
}

// migrationOf creates a DatastoreMigration where the API server serves it in one version, and returns what to delete.
func migrationOf(t *testing.T, m *Mover, version, other string) []*object {
	t.Helper()
	store := m.Stores[groups.V1]
	of := func(version string, serves bool) string {
		return fmt.Sprintf(`{"name":%q,"served":%t,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object"}}}`, version, serves, serves)
	}
	definition := &object{of: api.Type{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition",
		Plural: "customresourcedefinitions"}, Meta: api.Meta{Name: "datastoremigrations.migration.projectcalico.org"},
		Spec: json.RawMessage(fmt.Sprintf(`{"group":"migration.projectcalico.org","scope":"Cluster","names":{"kind":"DatastoreMigration",
			"listKind":"DatastoreMigrationList","plural":"datastoremigrations","singular":"datastoremigration"},
			"versions":[%s,%s]}`, of(version, true), of(other, false)))}
	waittest.For(t, time.Minute, func() error { // until the one before is gone
		return store.Create(t.Context(), definition)
	})
	o := &object{of: migrations, Meta: api.Meta{Name: "v1-to-v3"}}
	o.of.Version = version
	waittest.For(t, time.Minute, func() error { return store.Create(t.Context(), o) })
	return []*object{o, definition}
}

// atTheEnd has kube-controllers whose group was set while the objects moved.
func atTheEnd(t *testing.T, m *Mover, set string) {
	t.Helper()
	errtest.Must(t, m.Start(t.Context(), groups.V3))
	agents(t, m)
	ofTortie(t, m, "tenant", "silent", "node", `{"nodeName":"three",`+set[1:])
	controllers := ofTortie(t, m, "release", "set", "kube-controllers", set)
	m = answering(t, m, groups.V3)
	if err := m.Finish(t.Context()); !errtest.Names(err, "release/set apiGroup") {
		t.Errorf("finish, with kube-controllers whose group is set: %v", err)
	}
	errtest.Must(t, errors.Join(m.Stores[groups.V1].Delete(t.Context(), controllers), m.Finish(t.Context())))
}
