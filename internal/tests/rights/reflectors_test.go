package rights

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// With the right to patch Nodes, which automatic reflectors need, the controllers change what makes a reflector of a
// Node, and nothing else.
func TestReflectorsOfControllers(t *testing.T) {
	chart := []string{"--set", "bgp.automaticReflectors=true"}
	s := newScene(t, chart...)
	u := newUser(t, labtest.OnNode(t, s.cfg, "tortie-kube-controllers", s.thief))
	labtest.GrantAll(t, s.cfg, labtest.Chart(t, chart...))
	patch := func(text string) error {
		_, err := u.core.CoreV1().Nodes().Patch(t.Context(), s.victim, types.MergePatchType, []byte(text), metav1.PatchOptions{DryRun: dryRun})
		return err
	}
	const part = `{"metadata":{%q:{%q:%s}}}`
	for _, allowed := range []string{
		fmt.Sprintf(part, "labels", api.LabelReflector, `""`),
		fmt.Sprintf(part, "annotations", api.AnnotationReflector, `"10.0.0.1"`),
		fmt.Sprintf(part, "annotations", api.AnnotationReflector, "null"),
	} {
		passed(t, allowed, patch(allowed))
	}
	for _, refused := range []string{
		fmt.Sprintf(part, "labels", api.LabelReflector, `"x"`),
		fmt.Sprintf(part, "labels", "zone", `"z2"`),
		fmt.Sprintf(part, "labels", "zone", "null"),
		fmt.Sprintf(part, "annotations", "other", `"y"`),
		fmt.Sprintf(part, "annotations", "other", "null"),
		fmt.Sprintf(part, "annotations", api.AnnotationReflector, `"x"`),
		fmt.Sprintf(part, "annotations", api.AnnotationIPv4Address, `"10.0.0.1/24"`),
		`{"metadata":{"finalizers":["example.org/keep"]}}`,
		`{"spec":{"unschedulable":true}}`,
		`{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`,
	} {
		check(t, refused, patch(refused), true)
	}
}
