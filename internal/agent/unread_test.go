package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestFieldsWithoutEffect: all fields without effect in this node's configurations are named, and no longer after they
// have gone.
func TestFieldsWithoutEffect(t *testing.T) {
	r := newRig(t)
	status, _ := r.agent(t, newPeers())
	admin, name := labtest.RESTConfig(t), "node."+rigNode
	var want []nodestatus.FieldsWithoutEffect
	for _, kind := range []string{"BGPConfiguration", "FelixConfiguration"} {
		_, fields := labtest.CreateUnacted(t, admin, kind, name)
		want = append(want, nodestatus.FieldsWithoutEffect{Kind: kind, Name: name, Fields: fields})
	}
	own := func() []nodestatus.FieldsWithoutEffect {
		return slices.DeleteFunc(status.Report().FieldsWithoutEffect, func(f nodestatus.FieldsWithoutEffect) bool { return f.Name != name })
	}
	waittest.Until(t, 20*time.Second, "all fields are named", func() bool { return reflect.DeepEqual(own(), want) })
	if text := ask(t, status, "status"); !strings.Contains(text, "FelixConfiguration "+name+": "+strings.Join(want[1].Fields, ", ")) {
		t.Errorf("node status does not name them:\n%s", text)
	}
	felix := &api.FelixConfiguration{Meta: api.Meta{Name: name}}
	errtest.Must(t, r.store.Get(t.Context(), felix))
	errtest.Must(t, r.store.Delete(t.Context(), felix))
	waittest.Until(t, soon, "no more of what is gone", func() bool { return reflect.DeepEqual(own(), want[:1]) })
}

// TestUnreadAnnotations: Calico's annotations without effect are named, on the Node, its pods and namespaces, and no
// longer after they have gone.
func TestUnreadAnnotations(t *testing.T) {
	r := newRig(t)
	at, log := cluster.Server{Config: r.api, Group: labtest.Current(t)}, slog.New(slog.NewTextHandler(t.Output(), nil))
	feed, err := cluster.NewPolicyFeed(at, rigNode, log)
	errtest.Must(t, err)
	r.pods = feed
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { _ = feed.Run(ctx) })
	t.Cleanup(func() { cancel(); watching.Wait() })
	labtest.CreatePodOn(t, rigNode, "default", "rig-unread")
	pod, node, namespace := r.pod("rig-unread"), &api.Node{Meta: api.Meta{Name: rigNode}}, &api.Namespace{Meta: api.Meta{Name: "default"}}
	annotate := func(obj api.Resource, key string, value *string) {
		t.Helper()
		patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{key: value}}}
		errtest.Must(t, r.store.PatchStatus(t.Context(), obj, patch, false))
	}
	text := `["10.90.0.9"]`
	const ofNamespace = "projectcalico.org/rig-misspelt"
	r.update(t, namespace, func() { namespace.Annotations = map[string]string{ofNamespace: "x"} })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if r.store.Get(ctx, namespace) == nil {
			namespace.Annotations = nil
			_ = r.store.Update(ctx, namespace)
		}
	})
	annotate(pod, "qos.projectcalico.org/egressBandwidth", &text)
	annotate(pod, api.AnnotationFloatingIPs, &text)
	annotate(node, "projectcalico.org/AsNumber", &text)
	status, _ := r.agent(t, newPeers())
	named(t, status, "annotation qos.projectcalico.org/egressBandwidth of pods of this node, such as default/rig-unread, has no effect")
	named(t, status, "annotation projectcalico.org/AsNumber of this Node has no effect")
	named(t, status, "annotation "+ofNamespace+" of Namespace default has no effect")

	// A floating address that the plugin has not stored, once the pod has its own.
	names := func(part string) bool {
		return slices.ContainsFunc(status.Report().Problems, func(p string) bool { return strings.Contains(p, part) })
	}
	const floating = "annotation " + api.AnnotationFloatingIPs + " of pods of this node, such as default/rig-unread, has no effect"
	if names(floating) {
		t.Error("a pod that is just being started is accused")
	}
	client, err := dynamic.NewForConfig(labtest.RESTConfig(t))
	errtest.Must(t, err)
	_, err = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace("default").Patch(t.Context(),
		"rig-unread", types.MergePatchType, []byte(`{"status":{"podIP":"10.90.0.7","podIPs":[{"ip":"10.90.0.7"}]}}`),
		metav1.PatchOptions{}, "status")
	errtest.Must(t, err)
	waittest.Until(t, 2*fullPass, floating, func() bool { return names(floating) })
	sandbox := netnstest.New(t)
	r.ns.Within(t, func() error {
		_, err := podnet.Setup(t.Context(), podnet.Config{
			Netns: sandbox.Path(), IfName: "eth0", HostVeth: podnet.HostVethName(podnet.DefaultVethPrefix, "default", "rig-unread"),
			Addresses: []netip.Addr{addr("10.90.0.7")}, Floating: []netip.Addr{addr("10.90.0.9")},
		})
		return err
	})
	waittest.Until(t, 2*fullPass, "no more of what the plugin has noted", func() bool { return !names(floating) })
	annotate(node, "projectcalico.org/AsNumber", nil)
	waittest.Until(t, 20*time.Second, "no more of the Node", func() bool { return !names("AsNumber") })
}
