package ipamtool_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
)

// service makes a Service of type LoadBalancer that has got an address an hour ago.
func (w *world) service(name string) (handle string, address netip.Addr) {
	w.t.Helper()
	services := w.core.CoreV1().Services(namespace)
	made, err := services.Create(w.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	errtest.Must(w.t, err)
	handle = names.ServiceHandle(namespace, name, string(made.UID))
	got, err := w.ipam.Assign(w.t.Context(), ipam.Request{
		Owner: ipam.Owner{Handle: handle, Attrs: map[string]string{
			"service": name, "namespace": namespace, "type": api.ServiceLoadBalancer, "timestamp": time.Now().Add(-time.Hour).UTC().String(),
		}},
		Host: names.LoadBalancer, V4: true, Use: api.UseLoadBalancer, AnyNamespace: true,
	})
	errtest.Must(w.t, err)
	return handle, got[0].Address
}

// The address of a Service is reported with it and not freed while it exists. An address of a deleted or re-created
// Service is a leak. On etcd Services get no addresses.
func TestAddressesOfServices(t *testing.T) {
	own := asControllers(t)
	w := newWorld(t, labstore.Store(t), inventory.Source{IPAM: own, Cluster: own})
	w.create(&api.IPPool{Meta: api.Meta{Name: "services"}, Spec: api.IPPoolSpec{
		CIDR: "10.9.0.0/28", BlockSize: 30, AllowedUses: []api.AllowedUse{api.UseLoadBalancer}, NodeSelector: "all()",
	}})
	handle, a := w.service("web")
	if got := w.kinds(0); len(got) > 0 {
		t.Errorf("a Service that has its address: %v", got)
	}
	out, _ := w.run(0, "show", a.String())
	difftest.Contains(t, out, "owned by virtual:load-balancer; claim: confirmed", "Service default/web", handle, "In use    yes")
	for _, by := range [][]string{{a.String()}, {"-handle", handle}} {
		if out, _ := w.run(3, append([]string{"release", "-yes"}, by...)...); !strings.Contains(out, "refused: in use") ||
			len(w.held(handle)) != 1 {
			t.Errorf("release %s of a Service that exists: held %v\n%s", by, w.held(handle), out)
		}
	}

	services := w.core.CoreV1().Services(namespace)
	errtest.Must(t, services.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	again, b := w.service("web")
	defer func() { errtest.Must(t, services.Delete(t.Context(), "web", metav1.DeleteOptions{})) }()
	if got := w.kinds(3); !slices.Equal(got, []string{"address-no-service"}) {
		t.Errorf("found %v, want the address of the Service that is gone", got)
	}
	out, _ = w.run(3, "check", "-again", "0")
	difftest.Contains(t, out, a.String(), "there is no such Service of type LoadBalancer")
	out, _ = w.run(0, "show", a.String())
	difftest.Contains(t, out, "Service default/web", "In use    no: there is no such Service", "leak address-no-service")
	w.run(0, "release", "-yes", a.String())
	if len(w.held(handle)) > 0 || !slices.Equal(w.held(again), []netip.Addr{b}) {
		t.Errorf("the leak holds %v, the Service %v, want none and %s", w.held(handle), w.held(again), b)
	}
	if got := w.kinds(0); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}
