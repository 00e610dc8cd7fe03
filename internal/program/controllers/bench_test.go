package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/usagetest"
)

// The size of the measured cluster: nodes, and addresses of each.
const (
	benchNodes = 1000
	benchPods  = 30
)

// BenchmarkCluster measures the real program on the real API server: how large it is with 30,000 pods on 1,000 nodes,
// how long it takes when all of them are gone, and what processor time that is.
func BenchmarkCluster(b *testing.B) {
	for b.Loop() {
		w := newWorld(b, labtest.NewServer(b))
		w.fill(b)
		p := w.start("one", "", "TORTIE_LEAK_GRACE_PERIOD=90s", "RECONCILER_PERIOD=10s", "LOG_LEVEL=warn")
		leads(b, p)
		time.Sleep(time.Minute)
		size, spent := p.usage(b)
		b.Logf("with %d pods: %.0f MB at most, %.1f s of processor time so far", benchNodes*benchPods, size, spent)
		b.ReportMetric(size, "MB-peak-30000-pods")
		b.ReportMetric(spent, "CPU-s-first-minute")
		w.removePods(b)
		began := time.Now()
		for {
			s, err := p.status()
			if err == nil && s.Freed == benchNodes*benchPods && s.Removed >= benchNodes*benchPods {
				break
			}
			if time.Since(began) > 20*time.Minute {
				b.Fatalf("%+v, %v", s, err)
			}
			time.Sleep(time.Second)
		}
		size, after := p.usage(b)
		b.Logf("after all were collected: %.0f MB at most, %.1f s of processor time, %s", size, after, time.Since(began).Round(time.Second))
		b.ReportMetric(time.Since(began).Seconds(), "s-to-collect-30000")
		b.ReportMetric(size, "MB-peak")
		b.ReportMetric(after-spent, "CPU-s-to-collect")
		p.kill()
	}
}

// fill makes nodes, blocks with addresses, handles and pods.
func (w *world) fill(b *testing.B) {
	b.Helper()
	began := time.Now()
	many(b, func(ctx context.Context, n int, node string) error {
		if err := w.store.Create(ctx, &api.Node{Meta: api.Meta{Name: node}}); err != nil {
			return err
		}
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 44, byte(n >> 2), byte(n << 6)}), 26)
		claim := affinity(node, cidr.String(), api.AffinityConfirmed)
		claim.Labels = names.AffinityLabels(node, api.AffinityHost, cidr)
		if err := w.store.Create(ctx, claim); err != nil {
			return err
		}
		block := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(cidr)}, Spec: api.IPAMBlockSpec{
			CIDR: cidr.String(), Affinity: new(names.HostAffinity(node)), Allocations: make([]*int, 64), SequenceNumber: 31,
			SequenceNumberForAllocation: map[string]uint64{}, Unallocated: []int{},
		}}
		address := cidr.Addr()
		for i := range 64 {
			if i >= benchPods {
				block.Spec.Unallocated = append(block.Spec.Unallocated, i)
				continue
			}
			handle := fmt.Sprintf("k8s-pod-network.%064x", n*100+i)
			pod := fmt.Sprintf("pod-%04d-%02d", n, i)
			block.Spec.Allocations[i] = new(i)
			block.Spec.SequenceNumberForAllocation[strconv.Itoa(i)] = uint64(i)
			block.Spec.Attributes = append(block.Spec.Attributes, api.AllocationAttribute{HandleID: &handle, Secondary: map[string]string{
				"node": node, "pod": pod, "namespace": "default", "timestamp": "2026-11-22 04:00:00.123456789 +0000 UTC",
			}})
			h := &api.IPAMHandle{Meta: api.Meta{Name: handle}, Spec: api.IPAMHandleSpec{HandleID: handle, Block: map[string]int{cidr.String(): 1}}}
			if err := w.store.Create(ctx, h); err != nil {
				return err
			}
			if err := w.createPod(ctx, pod, node, address); err != nil {
				return err
			}
			address = address.Next()
		}
		return w.store.Create(ctx, block)
	})
	b.Logf("filled in %s", time.Since(began).Round(time.Second))
}

// createPod makes a pod of about the size that pods have.
func (w *world) createPod(ctx context.Context, name, node string, address netip.Addr) error {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", Labels: map[string]string{"app": "bench", "pod-template-hash": "5d9c7b5b8f"},
			Annotations: map[string]string{api.AnnotationPodIP: address.String() + "/32", api.AnnotationPodIPs: address.String() + "/32"},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "c", Image: "registry.example.com/team/application:v1.2.3", Args: []string{"--config=/etc/application/config.yaml", "--verbose"},
			Env: []corev1.EnvVar{{Name: "A_VARIABLE", Value: strings.Repeat("value ", 50)}},
		}}},
	}
	_, err := w.core.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	return err
}

func (w *world) removePods(b *testing.B) {
	b.Helper()
	zero := int64(0)
	began := time.Now()
	for {
		// One request may not take longer than a minute: the next one continues.
		err := w.core.CoreV1().Pods("default").DeleteCollection(b.Context(), metav1.DeleteOptions{GracePeriodSeconds: &zero},
			metav1.ListOptions{Limit: 2000})
		left, listed := w.core.CoreV1().Pods("default").List(b.Context(), metav1.ListOptions{Limit: 1})
		if err == nil && listed == nil && len(left.Items) == 0 {
			break
		}
		if time.Since(began) > 10*time.Minute {
			b.Fatal(err, listed)
		}
	}
	b.Logf("pods deleted in %s", time.Since(began).Round(time.Second))
}

// many calls a function for each node, in parallel.
func many(b *testing.B, do func(ctx context.Context, n int, node string) error) {
	b.Helper()
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(32)
	for n := range benchNodes {
		g.Go(func() error { return do(ctx, n, fmt.Sprintf("node-%04d", n)) })
	}
	errtest.Must(b, g.Wait())
}

// usage returns the process's peak size in megabytes and its processor time in seconds.
func (p *process) usage(b *testing.B) (size, seconds float64) {
	b.Helper()
	u := usagetest.Of(b, p.cmd.Process.Pid)
	return float64(u.Peak) * 1024 / 1e6, u.CPU.Seconds()
}
