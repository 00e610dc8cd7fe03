package rights

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// sized returns a block of the victim in which every second address is assigned to a pod, each with attributes of its
// own.
func sized(bits int, victim string) *unstructured.Unstructured {
	size := 1 << (32 - bits)
	allocations, unallocated, attributes, numbers := []any{}, []any{}, []any{}, map[string]any{}
	for i := range size {
		if i%2 == 1 {
			allocations, unallocated = append(allocations, nil), append(unallocated, int64(i))
			continue
		}
		allocations = append(allocations, int64(len(attributes)))
		attributes = append(attributes, map[string]any{
			"handle_id": fmt.Sprintf("k8s-pod-network.%064d", i),
			"secondary": map[string]any{"node": victim, "namespace": "default", "pod": fmt.Sprint("pod-", i),
				"timestamp": "2026-11-20 16:04:32.68279702 +0000 UTC"},
		})
		numbers[fmt.Sprint(i)] = int64(i)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": map[string]any{"name": fmt.Sprintf("10-64-0-0-%d", bits)},
		"spec": map[string]any{
			"cidr": fmt.Sprintf("10.64.0.0/%d", bits), "affinity": "host:" + victim, "affinityClaimTime": "2026-01-02T03:04:05Z",
			"strictAffinity": false, "deleted": false, "sequenceNumber": int64(1), "allocations": allocations, "unallocated": unallocated,
			"attributes": attributes, "sequenceNumberForAllocation": numbers,
		},
	}}
}

// CEL limits the cost of an expression: the largest possible block stays below the limit.
func TestLargeBlock(t *testing.T) {
	tier.All(t)
	inEachGroup(t, testLargeBlock)
}

func testLargeBlock(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	made := s.admin.create(t, in(group, sized(20, s.victim)))
	b := spec(made.Object["spec"].(map[string]any))
	b.bump()
	b.assign(1, "net.n", s.thief)
	made, err := s.update(t, made)
	errtest.Must(t, err)
	b = spec(made.Object["spec"].(map[string]any))
	b.free(0)
	b.bump()
	_, err = s.update(t, made)
	refused(t, "free the victim's", err)
}

// update goes on when the API server has run out of time: on a busy machine the policies need a minute for such a
// block.
func (s *scene) update(t *testing.T, block *unstructured.Unstructured) (made *unstructured.Unstructured, err error) {
	for range 5 {
		if made, err = s.plugin.of(block).Update(t.Context(), block, metav1.UpdateOptions{}); !apierrors.IsTimeout(err) &&
			!apierrors.IsServerTimeout(err) {
			break
		}
	}
	return made, err
}

// BenchmarkBlockWrite assigns and releases a borrowed address: the cost of a block write with and without the policies.
func BenchmarkBlockWrite(b *testing.B) {
	for _, bits := range []int{26, 20} {
		for _, mode := range []string{"off", "auto"} {
			b.Run(fmt.Sprintf("%d/%s", bits, mode), func(b *testing.B) { benchmarkWrite(b, bits, mode) })
		}
	}
}

func benchmarkWrite(b *testing.B, bits int, mode string) {
	cfg := labtest.NewServer(b)
	admin := newUser(b, restConfig(b, cfg))
	if mode != "off" {
		labtest.Fence(b, restConfig(b, cfg))
	}
	admin.declare(b, "thief")
	plugin := newUser(b, labtest.OnNode(b, restConfig(b, cfg), "tortie-cni", "thief"))
	made := admin.create(b, sized(bits, "victim"))
	for i := 0; b.Loop(); i++ {
		content := spec(made.Object["spec"].(map[string]any))
		content.bump()
		if i%2 == 0 {
			content.assign(1, "net.n", "thief")
		} else {
			content.free(1)
			content["attributes"] = content.list("attributes")[:len(content.list("attributes"))-1]
		}
		var err error
		if made, err = plugin.of(made).Update(b.Context(), made, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
