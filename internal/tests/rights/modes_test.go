package rights

import (
	"os/exec"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// warnings are the warning headers of the API server's responses.
type warnings []string

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// answer is the reaction of the policies to a request.
type answer string

const (
	silence answer = "passes"
	warning answer = "passes with a warning"
	refusal answer = "is refused"
)

// claim dry-runs the creation of an affinity of a node in one of Calico's groups.
func claim(t *testing.T, as *rest.Config, group groups.Group, node string) answer {
	t.Helper()
	as = rest.CopyConfig(as)
	said := &warnings{}
	as.WarningHandler = said
	u, obj := newUser(t, as), in(group, affinity(node+"-10-97-0-0-26", node, "10.97.0.0/26"))
	_, err := u.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "tortie fences nodes"):
		return refusal
	case err != nil:
		return answer(err.Error())
	case strings.Contains(strings.Join(*said, "\n"), "tortie fences nodes"):
		return warning
	}
	return silence
}

// TestModes: the effect of each value of `fencing` on a token with and without a node.
func TestModes(t *testing.T) {
	for _, c := range []struct {
		mode                  string
		own, victims, unbound answer // of a node for itself, of a node for another, without a node
	}{
		{"warn", silence, warning, warning},
		{"enforce", silence, refusal, refusal},
		{"auto", silence, refusal, warning},
	} {
		t.Run(c.mode, func(t *testing.T) {
			cfg := server(t, c.mode)
			thief, victim := "modes-"+c.mode+"-thief", "modes-"+c.mode+"-victim"
			newUser(t, cfg).declare(t, thief)
			for _, account := range []string{"tortie-node", "tortie-cni"} {
				bound, unbound := labtest.OnNode(t, cfg, account, thief), labtest.AsOn(t, cfg, account)
				for what, try := range map[string]struct {
					as   *rest.Config
					node string
					want answer
				}{
					"a node's token for its own block": {bound, thief, c.own},
					"a node's token for another's":     {bound, victim, c.victims},
					"a token of no node":               {unbound, thief, c.unbound},
				} {
					for _, group := range groups.All {
						if got := claim(t, try.as, group, try.node); got != try.want {
							t.Errorf("%s, %s, %s: %s; want: %s", account, group, what, got, try.want)
						}
					}
				}
			}
		})
	}
}

// TestUnfenced: where the API server does not support the policies, auto renders none; off never does. Other values
// fail instead.
func TestUnfenced(t *testing.T) {
	for _, c := range []struct {
		mode, kubernetes string
		fenced           bool
	}{
		{"auto", "1.29.9", false}, {"auto", "1.30.14", false}, {"auto", "1.31.0", true}, {"auto", "1.33.1-gke.100", true},
		{"off", "1.33.0", false}, {"enforce", "1.31.0-rc.1", true}, {"warn", "1.33.0", true},
	} {
		chart := labtest.Chart(t, "--set", "fencing="+c.mode, "--kube-version", c.kubernetes)
		if got := len(fences(chart)) > 0; got != c.fenced {
			t.Errorf("%s on Kubernetes %s: fenced %v, want %v", c.mode, c.kubernetes, got, c.fenced)
		}
	}
	for _, mode := range []string{"enforce", "warn"} {
		out, err := exec.CommandContext(t.Context(), labtest.Program(t, "helm"), "template", labtest.ChartDir(), "--set", "fencing="+mode,
			"--kube-version", "1.30.14").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "needs Kubernetes 1.31") {
			t.Errorf("%s on Kubernetes 1.30: %v, %s", mode, err, out)
		}
	}
}

// fences are the policies of a chart that confine its accounts.
func fences(chart []*unstructured.Unstructured) (found []string) {
	for _, obj := range chart {
		if obj.GetKind() == "ValidatingAdmissionPolicy" && strings.HasPrefix(obj.GetName(), "tortie-fence-") {
			found = append(found, obj.GetName())
		}
	}
	return found
}
