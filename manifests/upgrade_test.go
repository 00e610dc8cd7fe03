package manifests

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// An upgrade does not change the pool that the first installation made. So one that asks for another encapsulation
// fails, and names the command that does it; after that it succeeds. One that asks for nothing new succeeds whatever
// the pool is like by then.
func TestUpgradeNamesThePoolsPatch(t *testing.T) {
	kubeconfig := labtest.NewServer(t).Kubeconfig()
	run := func(program string, args ...string) (string, error) {
		out, err := exec.Command(labtest.Program(t, program), append(args, "--kubeconfig", kubeconfig)...).CombinedOutput()
		return string(out), err
	}
	release := func(verb string, args ...string) (string, error) {
		return run("helm", append([]string{verb, "tortie", chart, "--namespace", "kube-system", "--no-hooks"}, args...)...)
	}
	patch := labtest.InGroupText(t, `kubectl patch ippools.crd.projectcalico.org default-ipv4-ippool --type=merge -p `+
		`'{"spec":{"ipipMode":"Never","vxlanMode":"Always"}}'`)
	out, err := release("install")
	if err != nil || !strings.Contains(out, patch) || !strings.Contains(out, "NetworkPolicies are enforced") {
		t.Fatalf("%v: %s", err, out)
	}
	// As the agent makes it.
	pool := write(t, "pool.yaml", labtest.InGroupText(t, `{apiVersion: crd.projectcalico.org/v1, kind: IPPool, `+
		`metadata: {name: default-ipv4-ippool}, spec: {cidr: 192.168.0.0/16, ipipMode: Always}}`))
	if out, err := run("kubectl", "create", "-f", pool); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const vxlan = "ipPool.ipipMode=Never,ipPool.vxlanMode=Always"
	if out, err := release("upgrade", "--set", vxlan); err == nil ||
		!strings.Contains(out, "ipPool: the pool default-ipv4-ippool exists with other modes") || !strings.Contains(out, patch) {
		t.Fatalf("the pool was asked to change: %v: %s", err, out)
	}
	if out, err := release("upgrade", "--set", vxlan+",ipPool.cidr=none"); err != nil || strings.Contains(out, "exists with other modes") {
		t.Errorf("the values make no pool: %v: %s", err, out)
	}
	if out, err := release("upgrade", "--set", "logLevel=debug"); err != nil || strings.Contains(out, "exists with other modes") {
		t.Errorf("the pool matches the values: %v: %s", err, out)
	}
	if out, err := exec.Command("sh", "-c",
		strings.Replace(patch, "kubectl", labtest.Program(t, "kubectl")+" --kubeconfig "+kubeconfig, 1)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := release("upgrade", "--set", "logLevel=info"); err != nil || !strings.Contains(out,
		"NOTE: the pool default-ipv4-ippool exists with other modes than ipPool says") || strings.Contains(out, "NOTE: IPIP") {
		t.Errorf("the pool does not match the values: %v: %s", err, out)
	}
	if out, err := release("upgrade", "--set", vxlan); err != nil || strings.Contains(out, "exists with other modes") ||
		strings.Contains(out, patch) {
		t.Errorf("the pool has changed before: %v: %s", err, out)
	}
}
