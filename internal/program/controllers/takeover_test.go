package controllers

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// objects are objects by kind and name, with all of their fields.
type objects map[string]*unstructured.Unstructured

var (
	// serviceKinds are the plurals of the kinds of objects that hold addresses of Services.
	serviceKinds = map[string]string{
		"Service": "services", "IPAMBlock": "ipamblocks", "IPAMHandle": "ipamhandles", "BlockAffinity": "blockaffinities",
	}
)

// resource returns the client for a kind.
func (w *world) resource(kind string) dynamic.ResourceInterface {
	client, err := dynamic.NewForConfig(w.admin)
	errtest.Must(w.t, err)
	switch kind {
	case "IPPool":
		return client.Resource(labtest.KindOf(w.t, "ippools"))
	case "Service":
		return client.Resource(schema.GroupVersionResource{Version: "v1", Resource: serviceKinds[kind]}).Namespace("default")
	}
	return client.Resource(labtest.KindOf(w.t, serviceKinds[kind]))
}

// golden reads objects from testdata, in the order of the file, with the handles of the Services that exist.
func (w *world) golden(file string) (all []*unstructured.Unstructured) {
	w.t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	errtest.Must(w.t, err)
	services, err := w.core.CoreV1().Services("default").List(w.t.Context(), metav1.ListOptions{})
	errtest.Must(w.t, err)
	var handles []string
	for _, s := range services.Items {
		handle := names.ServiceHandle(s.Namespace, s.Name, string(s.UID))
		handles = append(handles, "HANDLE-OF-"+strings.ToUpper(s.Name), handle, "handle-of-"+s.Name, strings.ToLower(handle))
	}
	for document := range strings.SplitSeq(strings.NewReplacer(handles...).Replace(string(text)), "\n---\n") {
		data, err := yaml.YAMLToJSON([]byte(document))
		errtest.Must(w.t, err)
		obj := &unstructured.Unstructured{}
		errtest.Must(w.t, obj.UnmarshalJSON(data))
		labtest.InGroup(w.t, obj)
		all = append(all, obj)
	}
	return all
}

// write creates the objects of the kinds given.
func (w *world) write(all []*unstructured.Unstructured, kinds ...string) {
	w.t.Helper()
	for _, obj := range all {
		if !slices.Contains(kinds, obj.GetKind()) {
			continue
		}
		made, err := w.resource(obj.GetKind()).Create(w.t.Context(), obj, metav1.CreateOptions{FieldValidation: "Strict"})
		errtest.Must(w.t, err)
		if status, is := obj.Object["status"]; is {
			made.Object["status"] = status
			_, err = w.resource(obj.GetKind()).UpdateStatus(w.t.Context(), made, metav1.UpdateOptions{FieldValidation: "Strict"})
			errtest.Must(w.t, err)
		}
	}
}

// stored returns the stored objects that hold addresses of Services.
func (w *world) stored() objects {
	w.t.Helper()
	all := objects{}
	for kind := range serviceKinds {
		list, err := w.resource(kind).List(w.t.Context(), metav1.ListOptions{})
		errtest.Must(w.t, err)
		all.add(list.Items)
	}
	return all
}

func (o objects) add(list []unstructured.Unstructured) {
	for i := range list {
		if _, is := serviceKinds[list[i].GetKind()]; is && list[i].GetName() != "kubernetes" {
			o[list[i].GetKind()+"/"+list[i].GetName()] = &list[i]
		}
	}
}

func (o objects) named(name string) bool {
	for _, obj := range o {
		if obj.GetName() == name {
			return true
		}
	}
	return false
}

// goldenSet returns the objects of services.yaml that hold addresses of Services.
func (w *world) goldenSet() objects {
	w.t.Helper()
	all := objects{}
	for _, obj := range w.golden("services.yaml") {
		all.add([]unstructured.Unstructured{*obj})
	}
	return all
}

// diff compares all fields that controllers write. Times of our own must have Calico's form; sequence numbers count
// from the block's.
func (o objects) diff(have objects) error {
	want, got := map[string]any{}, map[string]any{}
	for name, obj := range o {
		want[name] = fields(obj)
	}
	for name, obj := range have {
		got[name] = fields(obj)
	}
	if d := cmp.Diff(want, got); d != "" {
		return fmt.Errorf("stored objects (-golden +stored):\n%s", d)
	}
	return nil
}

// fields returns the fields of an object that controllers write.
func fields(obj *unstructured.Unstructured) map[string]any {
	c := obj.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"} {
		unstructured.RemoveNestedField(c.Object, "metadata", field)
	}
	switch c.GetKind() {
	case "Service":
		delete(c.Object, "spec") // its author's
	case "IPAMBlock":
		spec := c.Object["spec"].(map[string]any)
		spec["affinityClaimTime"] = form(time.RFC3339, spec["affinityClaimTime"])
		for _, a := range spec["attributes"].([]any) {
			attributes := a.(map[string]any)["secondary"].(map[string]any)
			attributes["timestamp"] = form("2006-01-02 15:04:05.999999999 +0000 UTC", attributes["timestamp"])
		}
		of := spec["sequenceNumberForAllocation"].(map[string]any)
		for ordinal := range of {
			of[ordinal] = of[ordinal].(int64) - spec["sequenceNumber"].(int64)
		}
		delete(spec, "sequenceNumber")
	}
	return c.Object
}

// form returns the layout of a time that is written in it.
func form(layout string, value any) any {
	if text, is := value.(string); is {
		if at, err := time.Parse(layout, text); err == nil && at.Format(layout) == text {
			return layout
		}
	}
	return value
}

// Services get exactly the objects that Calico would have made for them.
func TestServicesGetCalicosObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, audited(t))
	all := w.golden("services.yaml")
	for _, obj := range all {
		delete(obj.Object, "status")
	}
	w.write(all[:3], "IPPool", "Service")
	w.start("one", "")
	eventually(t, func() error {
		if have := w.stored(); have["IPAMBlock/192-0-2-0-30"] == nil {
			return fmt.Errorf("api has no address: %v", have["Service/api"])
		}
		return nil
	})
	w.write(all[3:], "Service")
	eventually(t, func() error { return w.goldenSet().diff(w.stored()) })
}

// probe returns when the controllers have checked all Services, as one gets its address, and all held addresses, as an
// empty handle is collected.
func (w *world) probe() {
	w.t.Helper()
	w.create(
		&api.IPPool{Meta: api.Meta{Name: "probe"}, Spec: api.IPPoolSpec{
			CIDR: "10.45.0.0/30", BlockSize: 30, AllowedUses: []api.AllowedUse{api.UseLoadBalancer},
			AssignmentMode: api.AssignManual, NodeSelector: "all()",
		}},
		&api.IPAMHandle{Meta: api.Meta{Name: "empty"}, Spec: api.IPAMHandleSpec{HandleID: "empty", Block: map[string]int{"10.44.9.0/26": 1}}},
	)
	errtest.Must(w.t, w.service("probe", func(s *corev1.Service) {
		s.Annotations, s.Spec.IPFamilyPolicy = map[string]string{api.AnnotationServicePoolsV4: `["probe"]`}, new(corev1.IPFamilyPolicySingleStack)
	}))
	eventually(w.t, func() error {
		s, err := w.core.CoreV1().Services("default").Get(w.t.Context(), "probe", metav1.GetOptions{})
		if err != nil || len(s.Status.LoadBalancer.Ingress) != 1 {
			return fmt.Errorf("status of probe: %v, %w", s.Status, err)
		}
		if w.stored()["IPAMHandle/empty"] != nil {
			return errors.New("the empty handle is not collected yet")
		}
		return nil
	})
}

// Calico's objects are taken over as they are: nothing is written. Each is removed with its Service.
func TestCalicosServicesAreTakenOver(t *testing.T) {
	t.Parallel()
	server := audited(t)
	w := newWorld(t, server)
	w.write(w.golden("services.yaml"), "IPPool", "Service")
	w.write(w.golden("services.yaml"), "IPAMBlock", "IPAMHandle", "BlockAffinity")
	golden := w.goldenSet()
	before := w.stored()
	errtest.Must(t, golden.diff(before))

	w.start("one", "")
	w.probe()
	for name, obj := range w.stored() {
		if was := before[name]; was != nil && was.GetResourceVersion() != obj.GetResourceVersion() {
			t.Errorf("%s was written", name)
		}
	}
	for _, r := range server.AuditedRequests(t) {
		if golden.named(r.Name) && !slices.Contains([]string{"get", "list", "watch"}, r.Verb) {
			t.Errorf("%s %s/%s", r.Verb, r.Resource, r.Name)
		}
	}

	services := w.core.CoreV1().Services("default")
	errtest.Must(t, services.Delete(t.Context(), "probe", metav1.DeleteOptions{}))
	errtest.Must(t, services.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	handle := strings.ToLower(names.ServiceHandle("default", "web", string(before["Service/web"].GetUID())))
	for _, gone := range []string{"Service/web", "IPAMHandle/" + handle, "IPAMBlock/2001-db8---126",
		"BlockAffinity/load-balancer-2001-db8---126"} {
		delete(golden, gone)
	}
	golden["IPAMBlock/192-0-2-0-30"] = w.golden("services-without-web.yaml")[0]
	eventually(t, func() error { return golden.diff(w.stored()) })
	errtest.Must(t, services.Delete(t.Context(), "api", metav1.DeleteOptions{}))
	eventually(t, func() error { return objects{}.diff(w.stored()) })
}
