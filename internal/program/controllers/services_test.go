package controllers

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/controllers"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

var kills = flag.Int("services.kills", tier.Size(15, 100), "how many leaders TestServicesGetAddresses kills")

// servicePools makes pools for Services, of both families.
func (w *world) servicePools() {
	for name, cidr := range map[string]string{"lb4": "10.45.0.0/18", "lb6": "fd45::/114"} {
		w.create(&api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{
			CIDR: cidr, AllowedUses: []api.AllowedUse{api.UseLoadBalancer}, NodeSelector: "all()",
		}})
	}
}

// service makes a Service of type LoadBalancer and both families, with some changes.
func (w *world) service(name string, changes ...func(*corev1.Service)) error {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			AllocateLoadBalancerNodePorts: new(false),
			Ports:                         []corev1.ServicePort{{Port: 80}},
		},
	}
	for _, change := range changes {
		change(s)
	}
	_, err := w.core.CoreV1().Services("default").Create(w.t.Context(), s, metav1.CreateOptions{})
	return err
}

// served returns nil if all Services of type LoadBalancer show one address of each of their families, which their
// handles hold, and nothing else is held for Services.
func (w *world) served(want int) error {
	list, err := w.core.CoreV1().Services("default").List(w.t.Context(), metav1.ListOptions{FieldSelector: "spec.type=LoadBalancer"})
	if err != nil {
		return err
	}
	v := w.view()
	all, shown := held(&v), 0
	for i := range list.Items {
		s := &list.Items[i]
		for _, family := range s.Spec.IPFamilies {
			at := slices.IndexFunc(s.Status.LoadBalancer.Ingress, func(e corev1.LoadBalancerIngress) bool {
				return strings.Contains(e.IP, ":") == (family == corev1.IPv6Protocol)
			})
			if at < 0 {
				return fmt.Errorf("%s has no %s address: %v", s.Name, family, s.Status.LoadBalancer)
			}
			a := netip.MustParseAddr(s.Status.LoadBalancer.Ingress[at].IP)
			if all[a] != names.ServiceHandle(s.Namespace, s.Name, string(s.UID)) {
				return fmt.Errorf("%s shows %s, which %q holds", s.Name, a, all[a])
			}
			shown++
		}
		if len(s.Status.LoadBalancer.Ingress) != len(s.Spec.IPFamilies) {
			return fmt.Errorf("%s has %v, and the families %v", s.Name, s.Status.LoadBalancer, s.Spec.IPFamilies)
		}
	}
	for _, handle := range all {
		if strings.HasPrefix(handle, "lb-") {
			shown--
		}
	}
	if shown != 0 || len(list.Items) != want {
		return fmt.Errorf("%d Services, want %d; statuses show %d addresses more than are held", len(list.Items), want, shown)
	}
	return nil
}

// Services are made and deleted while leaders are killed: each has one address of a family in the end, and
// `kube-controllers ipam check` finds nothing. A process is killed while it leads, often right after it has assigned an
// address. A Lease is deleted with its holder, so that the next process need not wait for its expiry.
func TestServicesGetAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, audited(t))
	w.servicePools()
	kubeconfig := labtest.WriteKubeconfig(t, t.TempDir(), labtest.AsOn(t, w.admin, account))
	// Like its default of 15 min, longer than the last request of a killed leader may wait on a busy machine: such a request
	// may still write a block, whose handle must not have been taken for unused meanwhile.
	const grace = "TORTIE_LEAK_GRACE_PERIOD=25s"
	there, killed, working := map[string]bool{}, 0, 0
	began := time.Now()
	for ; killed < *kills || working < *kills/5 && killed < 3**kills; killed++ { // a busy machine's leaders are slow to give an address
		p := w.start(fmt.Sprint("p", killed), kubeconfig, grace)
		for range 3 {
			name := fmt.Sprint("s", rand.IntN(30))
			if there[name] = !there[name]; there[name] {
				errtest.Must(t, w.service(name))
			} else {
				errtest.Must(t, w.core.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
			}
		}
		leads(t, p)
		if killAtWork(p) {
			working++
		}
		errtest.Must(t, w.core.CoordinationV1().Leases("kube-system").Delete(t.Context(), controllers.LeaseName, metav1.DeleteOptions{}))
	}
	t.Logf("%d leaders killed in %s, %d of them after their first address", killed, time.Since(began).Round(time.Second), working)
	if working < *kills/5 {
		t.Errorf("%d of %d leaders had given an address when they were killed", working, killed)
	}
	w.start("last", kubeconfig, grace)
	want := 0
	for _, is := range there {
		if is {
			want++
		}
	}
	eventually(t, func() error { return w.served(want) })
	eventually(t, func() error { return ipamCheck(t, kubeconfig) }) // what is empty goes after the grace period
	w.changesOfServices()
}

// killAtWork kills a leader right after it has assigned an address, or after a while, and reports whether it had.
func killAtWork(p *process) bool {
	const given = "Service has addresses"
	tick, ends := time.Tick(time.Millisecond), time.Now().Add(rand.N(time.Second))
	for time.Now().Before(ends) && !strings.Contains(p.log.String(), given) {
		<-tick
	}
	for range rand.N(20) { // others are on their way
		<-tick
	}
	p.kill()
	return strings.Contains(p.log.String(), given)
}

// ipamCheck returns an error unless `kube-controllers ipam check` finds nothing, not even a note.
func ipamCheck(t *testing.T, kubeconfig string) error {
	tool := exec.CommandContext(t.Context(), os.Args[0], "ipam", "check", "-again", "0")
	tool.Env = append(os.Environ(), asProgram, "KUBECONFIG="+kubeconfig)
	if out, err := tool.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "nothing is wrong") {
		return fmt.Errorf("ipam check: %v: %s", err, out)
	}
	return nil
}

// changesOfServices makes a Service request an address, and cease to be a LoadBalancer.
func (w *world) changesOfServices() {
	w.t.Helper()
	errtest.Must(w.t, w.service("asks"))
	services := w.core.CoreV1().Services("default")
	change := func(f func(*corev1.Service)) {
		w.t.Helper()
		eventually(w.t, func() error {
			s, err := services.Get(w.t.Context(), "asks", metav1.GetOptions{})
			if err == nil {
				f(s)
				_, err = services.Update(w.t.Context(), s, metav1.UpdateOptions{})
			}
			return err
		})
	}
	change(func(s *corev1.Service) {
		s.Annotations = map[string]string{"projectcalico.org/loadBalancerIPs": `["10.45.7.7"]`}
	})
	holds := func(want bool) {
		w.t.Helper()
		eventually(w.t, func() error {
			v := w.view()
			if _, is := held(&v)[netip.MustParseAddr("10.45.7.7")]; is != want {
				return fmt.Errorf("10.45.7.7 is held: %v, want %v", is, want)
			}
			return nil
		})
	}
	holds(true)
	change(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeClusterIP
		s.Spec.AllocateLoadBalancerNodePorts = nil
	})
	holds(false)
}

// BenchmarkServices measures the time in which 10,000 Services of Kubernetes' default, one family, get addresses.
func BenchmarkServices(b *testing.B) {
	const services = 10000
	w := newWorld(b, labtest.NewServer(b))
	var g errgroup.Group
	g.SetLimit(8)
	for i := range services {
		g.Go(func() error {
			return w.service(fmt.Sprint("s", i), func(s *corev1.Service) { s.Spec.IPFamilyPolicy = nil })
		})
	}
	errtest.Must(b, g.Wait())
	p := w.start("one", "")
	leads(b, p)
	began := time.Now()
	w.servicePools()
	waittest.For(b, 10*time.Minute, func() error { // listing 10,000 Services costs more than some of their addresses
		if n := strings.Count(p.log.String(), "Service has addresses"); n < services {
			return fmt.Errorf("%d Services have addresses", n)
		}
		return nil
	})
	took := time.Since(began)
	errtest.Must(b, w.served(services))
	b.ReportMetric(took.Seconds(), "s/10000")
}
