package cluster

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const manyPods = 10_000

// manyFed is a PolicyFeed that has seen many pods of other nodes, from 200 ReplicaSets in 50 namespaces.
func manyFed(b *testing.B) *PolicyFeed {
	f, err := NewPolicyFeed(Server{Config: &rest.Config{Host: "http://127.0.0.1:1"}}, "self", slog.New(slog.DiscardHandler))
	errtest.Must(b, err)
	of := newObjectStore(samePolicyPod, f.notePod)
	f.watches[""] = &tempWatch[policyPod]{of: of, listed: true}
	list := make([]any, manyPods)
	for i := range manyPods {
		list[i] = fedPod(b, i, 1, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}
	errtest.Must(b, of.Replace(list, ""))
	return f
}

func fedPod(b *testing.B, i, revision int, address string) *object[policyPod] {
	set := i % 200
	o := &object[policyPod]{}
	decode(b, fmt.Sprintf(
		`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"service-%03d-6d4b75cb6d-%05d","namespace":"team-%02d",
		"generateName":"service-%03d-6d4b75cb6d-","uid":"8f2d2c0e-7d2f-4f0e-9d57-%012d","resourceVersion":"%d",
			"creationTimestamp":"2026-11-23T07:00:00Z",
		"labels":{"app.kubernetes.io/name":"service-%03d","app.kubernetes.io/part-of":"shop","pod-template-hash":"6d4b75cb6d","tier":"backend"},
		"annotations":{"cni.projectcalico.org/containerID":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		"cni.projectcalico.org/podIP":"%s/32","cni.projectcalico.org/podIPs":"%s/32,fd00::%x/128"},
		"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"service-%03d-6d4b75cb6d",
			"uid":"8f2d2c0e-7d2f-4f0e-9d57-000000000000"}]},"spec":{"nodeName":"n"}}`,
		set, i, set%50, set, i, 1000000+i+revision, set, address, address, i, set), o)
	return o
}

// What 10,000 pods of other nodes take, with two addresses each.
func BenchmarkPolicyFeedMemory(b *testing.B) {
	for b.Loop() {
		before := heap()
		f := manyFed(b)
		view := f.Take()
		b.ReportMetric(float64(heap()-before)/manyPods, "B/pod")
		runtime.KeepAlive(f)
		runtime.KeepAlive(view)
	}
}

// What a change of one pod among 10,000 costs an agent, with the decoding of the event.
func BenchmarkPolicyFeedEvent(b *testing.B) {
	f := manyFed(b)
	f.Take()
	of := f.watches[""].of
	for n := 0; b.Loop(); n++ {
		errtest.Must(b, of.Add(fedPod(b, 7, n, fmt.Sprintf("10.200.%d.%d", n>>8&255, n&255))))
		if view := f.Take(); len(view.Changed) != 1 || len(view.Pods) != manyPods || view.More {
			b.Fatal(view.Changed)
		}
	}
}

// What a change of one pod costs of 1,000 that name the same addresses, which nobody has.
func BenchmarkContestedAddresses(b *testing.B) {
	table := newPodTable()
	table.settle(ground{"10.0.0.0/16": "m"})
	pod := func(i int) *policyPod {
		p := &policyPod{node: "n", words: slices.Repeat([]word{byNote}, mostAddresses), created: int64(i)}
		p.pod = &policy.Pod{PodKey: policy.PodKey{Name: fmt.Sprint(i)}}
		for j := range mostAddresses {
			p.pod.Addresses = append(p.pod.Addresses, netip.AddrFrom4([4]byte{10, 0, 0, byte(j)}))
		}
		return p
	}
	for i := range 1000 {
		p := pod(i)
		table.set(p.pod.PodKey, p, false)
	}
	for i := 0; b.Loop(); i++ {
		p := pod(i % 1000)
		table.set(p.pod.PodKey, nil, false)
		table.set(p.pod.PodKey, p, false)
	}
}
