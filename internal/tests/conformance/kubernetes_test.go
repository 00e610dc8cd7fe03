package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// few are specs that cover most of what NetworkPolicy has: both directions, kinds of peers, ports, protocols, changes.
var few = []string{
	"NetworkPolicy between server and client should support a 'default-deny-all' policy",
	"should enforce policy based on Multiple PodSelectors and NamespaceSelectors",
	"should enforce multiple, stacked policies with overlapping podSelectors",
	"should enforce policies to check ingress and egress policies can be controlled independently",
	"should allow egress access on one named port",
	"should enforce except clause while egress access to server in CIDR block",
	"should enforce updated policy",
	"should allow ingress access from updated pod",
	"should not allow access by TCP when a policy specifies only UDP",
	"using UDP should enforce policy based on Ports",
}

// ofSCTP is in the names of the specs whose pods serve SCTP.
const ofSCTP = "[Feature:SCTPConnectivity]"

// networkPolicy runs specs of Kubernetes, several at once, each as a process of its own.
func networkPolicy(t *testing.T, lab *labtest.Lab, r *results) {
	all := specs(t)
	chosen := slices.DeleteFunc(slices.Clone(all), func(spec string) bool { return !asked(spec) })
	t.Logf("%d of %d specs; make e2e runs all", len(chosen), len(all))
	for _, spec := range chosen {
		t.Run(short(spec), func(t *testing.T) {
			if strings.Contains(spec, ofSCTP) && !kernelHasSCTP() {
				const why = "its pods serve SCTP, which this kernel does not have"
				r.add(result{suite: kubernetesSuite, spec: short(spec), why: why})
				t.Skip(why)
			}
			t.Parallel()
			began := time.Now()
			runSpec(t, lab, spec)
			one := result{suite: kubernetesSuite, spec: short(spec), passed: !t.Failed(), took: time.Since(began)}
			t.Log(one)
			r.add(one)
		})
	}
}

// asked says whether a spec is one that this run is for.
func asked(spec string) bool {
	switch {
	case *onlySCTP:
		return strings.Contains(spec, ofSCTP)
	case *only != "":
		return strings.Contains(spec, *only)
	}
	return *everything || slices.ContainsFunc(few, func(part string) bool { return strings.Contains(spec, part) })
}

// runSpec fails the test unless exactly this spec is run and passes.
func runSpec(t *testing.T, lab *labtest.Lab, spec string) {
	ctx, cancel := context.WithTimeout(t.Context(), specPatience*meshtest.TimeScale)
	defer cancel()
	out, err := lab.Do(ctx, "conformance", "networkpolicy", "--provider=skeleton", "--ginkgo.no-color", "--ginkgo.v",
		"--ginkgo.focus="+regexp.QuoteMeta(spec)+"$")
	if err != nil || !strings.Contains(out, "1 Passed | 0 Failed") {
		t.Errorf("%v\n%s", err, tail(out))
	}
}

// specs returns the names of all specs of NetworkPolicy, sorted.
func specs(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "specs.json")
	cmd := exec.CommandContext(t.Context(), labtest.Program(t, "networkpolicy"), "--ginkgo.dry-run", "--ginkgo.json-report="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("list the specs: %v\n%s", err, out)
	}
	var suites []struct {
		SpecReports []struct {
			LeafNodeType, LeafNodeText string
			ContainerHierarchyTexts    []string
		}
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &suites)
	}
	errtest.Must(t, err)
	var all []string
	for _, s := range suites[0].SpecReports {
		if s.LeafNodeType == "It" {
			all = append(all, strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " "))
		}
	}
	slices.Sort(all)
	if len(all) < 50 {
		t.Fatalf("%d specs, want 50 at least: %q", len(all), all)
	}
	return all
}

// kernelHasSCTP says whether pods can open a socket of SCTP: they have the kernel of this test.
func kernelHasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// short leaves out of a name what all have.
func short(spec string) string {
	for _, same := range []string{"[sig-network] ", " [Feature:NetworkPolicy]", "NetworkPolicy between server and client "} {
		spec = strings.Replace(spec, same, "", 1)
	}
	return spec
}

// tail returns the end of an output: a spec that fails shows tables of hundreds of lines.
func tail(text string) string {
	const most = 8000
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("(%d bytes before)\n%s", len(text)-most, text[len(text)-most:])
}
