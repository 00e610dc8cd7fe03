package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tortie-net/tortie/lab/internal/kubeapi"
)

const (
	denyAll = `kubectl apply -f - <<.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {}, policyTypes: [Ingress]}
.`
	allowOne = `kubectl apply -f - <<.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {run: test-pod2}}
  ingress:
  - from: [{podSelector: {matchLabels: {run: debug}}}]
    ports: [{port: 80}]
.`
)

// policy shows the same requests before, between and after two policies, and the node's report on them.
func (d *Demo) policy(ctx context.Context) error {
	// Long enough for allowed requests, even on emulated processors; denied ones take all of it.
	try := fmt.Sprintf("timeout %d wget -qO- http://%s/", max(1, int(d.TimeScale/2)), d.facts.pod2IP)
	both := fmt.Sprintf("for pod in debug test-pod; do kubectl exec $pod -- sh -c '%s || echo no answer' 2>/dev/null; done", try)
	before, err := d.kubectl(ctx, both)
	if err != nil {
		return err
	}
	first := "kubectl exec debug -- " + try
	closed, err := d.between(ctx, denyAll, first, false, both)
	if err != nil {
		return err
	}
	opened, err := d.between(ctx, allowOne, first, true, both)
	if err != nil {
		return err
	}
	return errors.Join(
		expectLines(before, 2, `^test-pod2$`),
		expectLines(closed, 2, `^no answer$`), expectLines(closed, 0, `^test-pod2$`),
		expect(opened, `\Atest-pod2\nno answer\n\z`),
		d.decisions(ctx))
}

// between applies a policy and shows requests once it is in force, which it detects by the success of a first request.
func (d *Demo) between(ctx context.Context, apply, first string, succeeds bool, then string) (string, error) {
	if _, err := d.kubectl(ctx, apply); err != nil {
		return "", err
	}
	quiet := *d
	quiet.Out = io.Discard
	err := kubeapi.Poll(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		if _, err := quiet.kubectl(ctx, first); (err == nil) != succeeds {
			return fmt.Errorf("the policy does not count yet: %w", err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return d.kubectl(ctx, then)
}

// decisions shows the denials on node2, where the requests end, with their reasons.
func (d *Demo) decisions(ctx context.Context) error {
	const agent = "$(kubectl -n kube-system get pods -l app.kubernetes.io/component=node --field-selector spec.nodeName=node2 -o name)"
	shown, err := d.kubectl(ctx, "kubectl -n kube-system exec "+agent+" -c node -- node policy")
	if err != nil {
		return err
	}
	counted, err := d.node(ctx, "node2", "nft list table inet tortie-policy | grep 'comment \"ingress NetworkPolicy'")
	errs := []error{err, expect(counted, `counter packets [1-9]\d* bytes \d+ .*NetworkPolicy default/deny`)}
	for _, of := range []struct{ from, verdict string }{{"debug", "allowed"}, {"test-pod", "denied"}} {
		why, err := d.kubectl(ctx, "kubectl -n kube-system exec "+agent+" -c node -- node policy explain "+of.from+" test-pod2:80/TCP")
		errs = append(errs, err, expect(strings.ToLower(why), of.verdict))
	}
	return errors.Join(append(errs, expect(shown, `test-pod2\s`))...)
}
