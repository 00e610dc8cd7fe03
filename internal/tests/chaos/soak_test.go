package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

var (
	soakTime   = flag.Duration("soak", 20*time.Second, "how long TestCluster disturbs the cluster")
	soakReport = flag.String("soak-report", "", "file into which TestCluster writes its history and verdict")
)

const (
	machines = 50
	// concurrency is the number of plugins that run at the same time: more would only wait for a processor.
	concurrency = 6
)

// soakPool has 64 blocks of 16 addresses for 50 machines. Some machines have more pods than a block has addresses, and
// borrow.
var soakPool = netip.MustParsePrefix("10.64.0.0/22")

// steppers are the programs, built with steppable clocks.
var steppers = newPrograms().Stepping()

// soak is a whole cluster: its API server, two kube-controllers with leader election, and machines on which pods start
// and end.
type soak struct {
	*churn
	kube        *kube
	server      *labtest.Server
	machines    []*machine
	controllers []*controllers
	agents      *ipam.Client
	pace        time.Duration // the longest pause of a machine
	serial      atomic.Int64
	freeNames   chan string // names of pods that are created again under the same name

	eventsMu sync.Mutex // guards events
	events   []string
}

// showEvents shows what was done to the cluster, for a run that failed.
func (s *soak) showEvents(t *testing.T) {
	s.eventsMu.Lock()
	defer s.eventsMu.Unlock()
	if t.Failed() {
		t.Log("history:\n" + strings.Join(s.events, "\n"))
	}
}

// logEvent adds a line to the history.
func (s *soak) logEvent(format string, args ...any) {
	s.eventsMu.Lock()
	defer s.eventsMu.Unlock()
	s.events = append(s.events, fmt.Sprintf("%6.1f s  %s", s.now().Seconds(), fmt.Sprintf(format, args...)))
}

// inc counts an event for the report.
func (s *soak) inc(what string) { s.tally(what, true) }

// TestCluster disturbs a whole cluster, lets it settle, and audits it: no address was assigned twice, no record of a
// deleted object is left, and the usage of the pools is exact.
func TestCluster(t *testing.T) {
	tier.All(t)
	s := newSoak(t)
	defer s.showEvents(t)
	defer s.report(t)
	ctx, cancel := context.WithTimeout(t.Context(), *soakTime+10*time.Minute)
	defer cancel()
	s.history.start = time.Now()
	v := &verdict{started: time.Now()}
	errtest.Must(t, s.disturb(ctx))
	t.Logf("disturbed for %v: %s", s.now().Round(time.Second), s.summary())
	s.mu.Lock()
	v.events = maps.Clone(s.churn.count)
	s.mu.Unlock()
	for _, step := range []func(context.Context, *verdict) error{s.rest, s.compare, s.empty, s.vacate, s.noLeftovers(t)} {
		if err := step(ctx, v); err != nil {
			s.fault("%v", err)
			break
		}
	}
	if err := s.look(ctx); err != nil { // losses since the last observation belong to the history
		s.fault("%v", err)
	}
	s.prove(v)
	t.Log("\n" + v.String())
	if err := s.write(*soakReport, v); err != nil {
		t.Error(err)
	}
}

// newSoak creates the cluster.
func newSoak(t *testing.T) *soak {
	server := labtest.NewServer(t)
	c := onKubernetes(t, server.Kubeconfig())
	s := &soak{churn: newChurn(c, nil, 0), kube: c.datastore.(*kube), server: server, agents: ipam.NewClient(c.store, time.Now),
		pace: 400 * time.Millisecond, freeNames: make(chan string, 40)}
	s.outages, s.kills, s.slots = true, 0.25, make(chan struct{}, concurrency)
	for i := range cap(s.freeNames) {
		s.freeNames <- fmt.Sprintf("web-%d", i)
	}
	c.create(t, &api.IPPool{Meta: api.Meta{Name: "soak"},
		Spec: api.IPPoolSpec{CIDR: soakPool.String(), BlockSize: 28, VXLANMode: api.EncapAlways}})
	for i := range machines {
		s.machines = append(s.machines, s.newMachine(t, i))
	}
	for i := range 2 {
		c := newControllers(t, fmt.Sprintf("controllers-%d", i), s.kube, steppers)
		errtest.Must(t, c.start())
		s.controllers = append(s.controllers, c)
	}
	return s
}

// newMachine creates a machine. One of five has more pods than a block has addresses; some run calico-ipam by the
// protocol of any IPAM plugin.
func (s *soak) newMachine(t *testing.T, i int) *machine {
	shape := shape{ipam: "calico-ipam", programs: steppers}
	if i%10 == 3 {
		shape.ipam = delegate
	}
	m := &machine{soak: s, node: s.newNode(t, fmt.Sprintf("node-%d", i), shape), random: rand.New(rand.NewPCG(*seed, uint64(i))), most: 5}
	if i%5 == 0 {
		m.most = 20
	}
	var err error
	if m.server, err = m.apiServer(); err != nil {
		t.Fatal(err)
	}
	m.kubelet = &kubelet{churn: s.churn, random: m.random}
	m.env = []string{cnitest.ClockSetting(clockPath)}
	errtest.Must(t, m.stepClock(0))
	if slices.Contains(daemons(), i) {
		m.newDaemon(t, i)
	}
	errtest.Must(t, m.boot(t.Context()))
	return m
}

// disturb disturbs the cluster until the given time is over.
func (s *soak) disturb(ctx context.Context) error {
	during, stop := context.WithTimeout(ctx, *soakTime)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	watching, stopWatching := context.WithCancel(gctx)
	defer stopWatching()
	g.Go(func() error { return s.watch(watching) })
	var disturbing errgroup.Group
	for _, m := range s.machines {
		disturbing.Go(func() error { return m.run(gctx, during) })
	}
	for _, disturb := range []func(context.Context, *rand.Rand) error{s.killControllers, s.killServer, s.stepClocks, s.useTool} {
		random := rand.New(rand.NewPCG(*seed, uint64(s.serial.Add(1))<<32))
		disturbing.Go(func() error { return disturb(during, random) })
	}
	err := disturbing.Wait()
	stopWatching()
	return errors.Join(err, g.Wait())
}

// killControllers kills one of the controllers, sometimes both. Between kills they have time to work, and it stops
// early enough for a new leader to wait for the lease to expire.
func (s *soak) killControllers(ctx context.Context, random *rand.Rand) error {
	end := time.Now().Add(*soakTime * 2 / 3)
	for pause := min(*soakTime/4, 10*time.Second); ; pause = 5*time.Second + time.Duration(random.Int64N(int64(20*time.Second))) {
		sleep(ctx, pause)
		if ctx.Err() != nil || time.Now().After(end) {
			return nil
		}
		victims := []*controllers{s.controllers[random.IntN(2)]}
		if random.IntN(4) == 0 {
			victims = s.controllers
		}
		for _, c := range victims {
			s.logEvent("kill -9 %s", c.name)
			s.inc("kills of kube-controllers")
			if err := c.kill(); err != nil {
				return err
			}
		}
		sleep(ctx, time.Duration(random.Int64N(int64(2*time.Second))))
		for _, c := range victims {
			if err := c.start(); err != nil {
				return err
			}
		}
	}
}

// killServer kills the API server at random times.
func (s *soak) killServer(ctx context.Context, random *rand.Rand) error {
	for pause := min(*soakTime/3, 20*time.Second); ; pause = 6*time.Second + time.Duration(random.Int64N(int64(30*time.Second))) {
		sleep(ctx, pause)
		if ctx.Err() != nil {
			return nil
		}
		s.logEvent("kill -9 kube-apiserver")
		s.inc("kills of kube-apiserver")
		if err := s.server.Kill(); err != nil {
			return err
		}
		sleep(ctx, absence) // it is restarted even if ctx has ended
		if err := s.server.Start(); err != nil {
			return err
		}
		s.logEvent("kube-apiserver serves again")
	}
}

// maxStep is the largest error of a clock. Certificates are valid from one hour before they were created.
const maxStep = 50 * time.Minute

// stepClocks steps the clocks of machines and of the controllers forward and backward.
func (s *soak) stepClocks(ctx context.Context, random *rand.Rand) error {
	for {
		sleep(ctx, time.Duration(random.Int64N(int64(2*time.Second))))
		if ctx.Err() != nil {
			return nil
		}
		ahead := time.Duration(random.Int64N(int64(2*maxStep)) - int64(maxStep)).Round(time.Second)
		s.inc("clock steps")
		if n := random.IntN(len(s.machines) + 10); n >= len(s.machines) {
			c := s.controllers[n%2]
			s.logEvent("the clock of %s is off by %v", c.name, ahead)
			if err := cnitest.StepClock(c.clock, ahead); err != nil {
				return err
			}
		} else if err := s.machines[n].stepClock(ahead); err != nil {
			return err
		}
	}
}

// useTool runs `ipam check -fix` repeatedly during the disturbance.
func (s *soak) useTool(ctx context.Context, _ *rand.Rand) error {
	for {
		sleep(ctx, *soakTime/4)
		if ctx.Err() != nil {
			return nil
		}
		output, code, err := s.controllers[0].tool(context.WithoutCancel(ctx), "check", "-again", "2s", "-fix", "-yes")
		s.inc("runs of ipam check -fix")
		// Between its DEL and the update of its status a pod reports an address that may already be assigned to another:
		// findings are only wrong in a settled cluster.
		if err != nil || code == 2 {
			s.fault("ipam check -fix during the disturbance: exit code %d, %v: %s", code, err, tail(output, 2000))
		}
		s.logEvent("ipam check -fix ends with exit code %d", code)
	}
}

// newName returns the name of a pod that has run before and does not run now, or a new name.
func (s *soak) newName(again bool) string {
	if again {
		select {
		case name := <-s.freeNames:
			return name
		default:
		}
	}
	return fmt.Sprintf("pod-%d", s.serial.Add(1))
}

// freeName makes the name of a deleted pod available again, if it is one of those that are reused.
func (s *soak) freeName(name string) {
	if len(name) > 4 && name[:4] == "web-" {
		s.freeNames <- name
	}
}

// retry repeats a request while the API server is unavailable.
func retry(ctx context.Context, request func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := request(try)
		cancel()
		var status apierrors.APIStatus
		if err == nil || errors.As(err, &status) && !apierrors.IsServerTimeout(err) && !apierrors.IsTooManyRequests(err) &&
			!apierrors.IsInternalError(err) && !apierrors.IsConflict(err) && !apierrors.IsServiceUnavailable(err) &&
			!apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err) && !apierrors.IsTimeout(err) {
			return err
		}
		sleep(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// createPod creates a pod's object, and returns CNI_ARGS for it. AlreadyExists is the result of an earlier try without
// a response.
func (s *soak) createPod(ctx context.Context, p *pod) (args string, err error) {
	pods := s.kube.core.CoreV1().Pods(namespace)
	err = retry(ctx, func(ctx context.Context) error {
		obj, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: p.name},
			Spec:       corev1.PodSpec{NodeName: p.node.name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			obj, err = pods.Get(ctx, p.name, metav1.GetOptions{})
		}
		if err == nil {
			args = fmt.Sprintf("K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", namespace, p.name, obj.UID)
		}
		return err
	})
	return args, err
}

// reportPod sets the status of a pod, as its kubelet does.
func (s *soak) reportPod(ctx context.Context, p *pod) error {
	status := map[string]any{"phase": "Running", "podIP": p.sandbox.addrs[0].String(),
		"podIPs": []map[string]string{{"ip": p.sandbox.addrs[0].String()}}}
	return s.patchStatus(ctx, p, status)
}

// finishPod sets a pod's phase to Succeeded.
func (s *soak) finishPod(ctx context.Context, p *pod) error {
	return s.patchStatus(ctx, p, map[string]any{"phase": "Succeeded"})
}

func (s *soak) patchStatus(ctx context.Context, p *pod, status map[string]any) error {
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	return retry(ctx, func(ctx context.Context) error {
		_, err := s.kube.core.CoreV1().Pods(namespace).Patch(ctx, p.name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
		return err
	})
}

// deletePod deletes a pod's object. From then on the controllers may release its addresses.
func (s *soak) deletePod(ctx context.Context, p *pod) error {
	if p.sandbox != nil {
		s.history.add(operation{kind: release, handle: p.sandbox.handle(), unknown: true, called: s.now(), completed: s.now()})
	}
	return retry(ctx, func(ctx context.Context) error {
		err := s.kube.core.CoreV1().Pods(namespace).Delete(ctx, p.name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (s *soak) createNode(ctx context.Context, name string) error {
	return retry(ctx, func(ctx context.Context) error {
		_, err := s.kube.core.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// newToken requests a token for a service account on a node.
func (s *soak) newToken(ctx context.Context, node, account string) (token string, err error) {
	err = retry(ctx, func(ctx context.Context) error {
		n, err := s.kube.core.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		request := &authv1.TokenRequest{
			Spec: authv1.TokenRequestSpec{BoundObjectRef: &authv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: n.UID}},
		}
		answer, err := s.kube.core.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, account, request, metav1.CreateOptions{})
		if err == nil {
			token = answer.Status.Token
		}
		return err
	})
	return token, err
}

func (s *soak) deleteNode(ctx context.Context, name string) error {
	s.inc("deaths of nodes")
	return retry(ctx, func(ctx context.Context) error {
		err := s.kube.core.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (s *soak) annotateNode(ctx context.Context, name string, tunnel netip.Addr) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{api.AnnotationIPv4VXLANAddr: tunnel.String()}},
	})
	if err != nil {
		return err
	}
	return retry(ctx, func(ctx context.Context) error {
		_, err := s.kube.core.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
		return err
	})
}

// each runs do for all machines, some at a time.
func (s *soak) each(do func(*machine) error) error {
	var g errgroup.Group
	g.SetLimit(2 * concurrency)
	for _, m := range s.machines {
		g.Go(func() error {
			if err := do(m); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// restTime is the limit for the controllers, including leader election.
const restTime = 3 * time.Minute

// view reads the inventory of the cluster with administrator rights.
func (s *soak) view(ctx context.Context) (*inventory.View, error) {
	v, err := inventory.Read(ctx, inventory.Source{IPAM: s.store, Cluster: s.store}, time.Now)
	return &v, err
}

// await reads the cluster until right returns "", and returns how long that took.
func (s *soak) await(ctx context.Context, right func(*inventory.View, []audit.Finding) string) (time.Duration, error) {
	start := time.Now()
	for {
		view, err := s.view(ctx)
		if err != nil {
			return 0, err
		}
		wrong := right(view, audit.Check(view))
		if wrong == "" {
			return time.Since(start), nil
		}
		if time.Since(start) > restTime {
			return 0, fmt.Errorf("after %v: %s", restTime, wrong)
		}
		sleep(ctx, 300*time.Millisecond)
	}
}

// clean returns the first findings, or "".
func clean(_ *inventory.View, findings []audit.Finding) string {
	text := ""
	for i, f := range findings {
		if i == 10 {
			return text + fmt.Sprintf("\nand %d more", len(findings)-i)
		}
		text += fmt.Sprintf("\n%s %s %s %s: %s", f.Grade, f.Kind, f.Object, f.Address, f.Detail)
	}
	return text
}

// rest stops the disturbance while pods keep running, and waits until an audit finds nothing.
func (s *soak) rest(ctx context.Context, v *verdict) error {
	view, err := s.view(ctx)
	if err != nil {
		return err
	}
	v.left = len(audit.Check(view))
	if err := s.each(func(m *machine) error { return m.settle(ctx) }); err != nil {
		return err
	}
	if view, err = s.view(ctx); err != nil {
		return err
	}
	for _, f := range audit.Check(view) {
		if f.Grade == audit.Danger {
			s.fault("settled: %s %s %s: %s", f.Kind, f.Object, f.Address, f.Detail)
		}
	}
	v.resting, err = s.await(ctx, clean)
	return err
}

// expected returns the addresses by handle: of running sandboxes and of tunnels.
func (s *soak) expected() map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	for _, m := range s.machines {
		for _, p := range m.pods {
			if p.sandbox != nil {
				all[p.sandbox.handle()] = p.sandbox.addrs
			}
		}
		all[m.tunnelHandle()] = []netip.Addr{m.tunnel}
	}
	return all
}

// compare compares the pool with the running sandboxes, address by address and in sum.
func (s *soak) compare(ctx context.Context, v *verdict) error {
	if err := s.look(ctx); err != nil {
		return err
	}
	all, err := s.contents(ctx)
	if err != nil {
		return err
	}
	expected := s.expected()
	for _, w := range all.audit(expected) {
		s.fault("with pods: %s", w)
	}
	output, code, err := s.controllers[1].tool(ctx, "check", "-again", "0")
	if err != nil || code != 0 {
		s.fault("ipam check when settled: exit code %d, %v: %s", code, err, tail(output, 2000))
	}
	v.live = len(expected)
	v.withPods, err = s.usage(ctx, len(expected))
	return err
}

// usage reads the usage of the pool, and checks its sums.
func (s *soak) usage(ctx context.Context, inUse int) (audit.Usage, error) {
	view, err := s.view(ctx)
	if err != nil {
		return audit.Usage{}, err
	}
	all := audit.Usages(view)
	i := slices.IndexFunc(all, func(u audit.Usage) bool { return u.CIDR == soakPool })
	if i < 0 || len(all) != 1 {
		return audit.Usage{}, fmt.Errorf("the cluster has other pools than one: %v", all)
	}
	u := all[i]
	if u.InUse != inUse || u.Free.Int64() != 1024-int64(inUse) || u.Cooling != 0 || u.Reserved.Sign() != 0 {
		return u, fmt.Errorf("%d addresses are used by pods and tunnels; the pool reports %d in use, %d cooling, %d reserved, %d free of %d",
			inUse, u.InUse, u.Cooling, u.Reserved, u.Free, u.Size)
	}
	return u, nil
}

// empty ends all pods; tunnel addresses stay.
func (s *soak) empty(ctx context.Context, v *verdict) error {
	if err := s.each(func(m *machine) error { return m.leave(ctx) }); err != nil {
		return err
	}
	var err error
	if v.emptying, err = s.await(ctx, clean); err != nil {
		return err
	}
	v.withoutPods, err = s.usage(ctx, len(s.machines))
	return err
}

// vacate removes all machines: no record may be left.
func (s *soak) vacate(ctx context.Context, v *verdict) error {
	if err := s.each(func(m *machine) error {
		if err := m.killDaemon(); err != nil {
			return err
		}
		s.history.add(operation{kind: release, handle: m.tunnelHandle(), unknown: true, called: s.now(), completed: s.now()})
		return s.deleteNode(ctx, m.name)
	}); err != nil {
		return err
	}
	var err error
	v.vacating, err = s.await(ctx, func(view *inventory.View, _ []audit.Finding) string {
		if len(view.Blocks)+len(view.Affinities)+len(view.Handles) == 0 {
			return ""
		}
		return fmt.Sprintf("%d blocks, %d claims and %d handles are left of nodes that are gone", len(view.Blocks),
			len(view.Affinities), len(view.Handles))
	})
	return err
}

// noLeftovers checks the machines' namespaces and files.
func (s *soak) noLeftovers(t *testing.T) func(context.Context, *verdict) error {
	return func(context.Context, *verdict) error {
		for _, m := range s.machines {
			for _, l := range m.leftovers(t) {
				s.fault("left over: %s", l)
			}
		}
		return nil
	}
}

// prove checks that the history is linearizable with one holder per address at a time.
func (s *soak) prove(v *verdict) {
	start := time.Now()
	for _, w := range s.check() {
		v.twice++
		s.fault("these operations are not linearizable:\n%s", w)
	}
	v.operations, v.proving = len(s.ops), time.Since(start)
	v.addresses = len(s.touched())
}
