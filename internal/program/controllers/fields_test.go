package controllers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// namedFields are the fields of each Event FieldWithoutEffect, by the object's UID.
func (w *world) namedFields() (found map[string][]string, err error) {
	list, err := w.core.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{FieldSelector: "reason=FieldWithoutEffect,type=Warning"})
	if err != nil {
		return nil, err
	}
	found = map[string][]string{}
	for _, e := range list.Items {
		fields, _, _ := strings.Cut(e.Message, ": ")
		found[string(e.InvolvedObject.UID)] = append(found[string(e.InvolvedObject.UID)], fields)
		if e.Count != 1 || len(e.Message) == 1024 {
			return nil, fmt.Errorf("the Event is cut off, or was written again: %+v", e)
		}
	}
	return found, nil
}

// Events on an object name each of its fields that is documented to have no effect, for every kind: once, also after a
// change of the leader, and again if the fields change.
func TestFieldsWithoutEffectAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, audited(t))
	kinds := slices.Collect(maps.Keys(api.Unacted))
	for kind := range api.Kept {
		if api.Unacted[kind] == nil {
			kinds = append(kinds, kind)
		}
	}
	want := map[string][]string{}
	var ofControllers []string
	for _, kind := range kinds {
		uid, fields := labtest.CreateUnacted(t, w.admin, kind, api.DefaultName)
		want[uid] = fields
		if kind == "KubeControllersConfiguration" {
			ofControllers = fields
		}
	}
	told := func() {
		t.Helper()
		eventually(t, func() error {
			found, err := w.namedFields()
			if err != nil {
				return err
			}
			for uid, fields := range want {
				all := strings.Split(strings.Join(found[uid], ", "), ", ")
				if slices.Sort(all); !slices.Equal(all, fields) {
					return fmt.Errorf("the Events on %s name %q, want %q", uid, all, fields)
				}
			}
			return nil
		})
	}
	one := w.start("one", "")
	told()
	s, err := one.status()
	errtest.Must(t, err)
	difftest.Want(t, "fields in the status", ofControllers, s.FieldsWithoutEffect)

	bgp := &api.BGPConfiguration{Meta: api.Meta{Name: "node.n"}, Spec: api.BGPConfigurationSpec{LogSeverityScreen: "Debug"}}
	w.create(bgp)
	want[bgp.UID] = []string{"spec.logSeverityScreen"}
	told()
	bgp.Spec.IgnoredInterfaces = []string{"docker*"}
	errtest.Must(t, w.store.Update(t.Context(), bgp))
	want[bgp.UID] = []string{"spec.ignoredInterfaces", "spec.logSeverityScreen", "spec.logSeverityScreen"}
	told()
	bgp.Spec.ListenPort = 1790 // the fields are the same
	errtest.Must(t, w.store.Update(t.Context(), bgp))

	one.kill()
	leads(t, w.start("two", ""))
	felix := &api.FelixConfiguration{Meta: api.Meta{Name: "node.n"}, Spec: api.FelixConfigurationSpec{LogSeverityScreen: "Debug"}}
	w.create(felix)
	want[felix.UID] = []string{"spec.logSeverityScreen"}
	told()
}
