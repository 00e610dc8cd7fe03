// Package conformance runs other projects' suites of network policy on a lab with Tortie: Kubernetes' end-to-end specs
// of NetworkPolicy, and network-policy-api's tests of ClusterNetworkPolicy. Every spec that this kernel can run must
// pass; what is not run is reported with its reason.
package conformance

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

var (
	everything = flag.Bool("all", false, "run every spec; by default some of each kind, for want of time")
	only       = flag.String("spec", "", "run the specs of Kubernetes whose name has this text, and of ClusterNetworkPolicy none")
	onlySCTP   = flag.Bool("only-sctp", false, "run what sends SCTP, and nothing else, on a kernel that has it")
	sctp       = flag.String("sctp-results", "",
		"comma-separated values that a run with -only-sctp has written, for what this kernel cannot run")
	v3 = flag.String("v3-results", "",
		"comma-separated values that a run in projectcalico.org/v3 (APIGROUP=v3) has written, for the report")
	report = flag.String("conformance-report", "", "file into which TestConformance writes what each spec has shown")
)

const (
	// specPatience is the limit for one spec of Kubernetes. One that passes takes up to half a minute; one that fails
	// tries again for minutes.
	specPatience = 2 * time.Minute
	// suitePatience is the limit for the tests of ClusterNetworkPolicy, all of which one process runs.
	suitePatience = 12 * time.Minute
	// atOnce is the number of specs that run at once, as many processors or not: they wait for denied connections to time
	// out, most of the time.
	atOnce = "5"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestConformance runs both suites on one lab of three nodes.
func TestConformance(t *testing.T) {
	tier.All(t)
	needtest.More(t, "the lab and the image, built")
	lab := labtest.NewLab(t, 3, "-agnhost", "-image", labtest.Image(t))
	lab.Kubectl(t, "apply", "--server-side", "-f", labtest.ClusterNetworkPolicyDefinition(t))
	values := "ipPool.vxlanMode=Always"
	if labtest.TimeScale > 1 {
		values += ",fencing=off" // an emulated API server takes longer to compile its expressions than a request may
	}
	lab.Release(t, "install", labtest.ImageTag, "--set", values)
	lab.Kubectl(t, "wait", "--for=condition=Ready", "node", "--all", fmt.Sprintf("--timeout=%v", 2*time.Minute*labtest.TimeScale))
	defer lab.LogDiagnostics(t)
	if *onlySCTP && !kernelHasSCTP() {
		t.Fatal("-only-sctp: this kernel has no SCTP")
	}
	r := newResults(t)
	t.Run("suites", func(t *testing.T) { // whose pods are in namespaces of their own
		t.Run("NetworkPolicy", func(t *testing.T) { t.Parallel(); networkPolicy(t, lab, r) })
		if *only == "" {
			t.Run("ClusterNetworkPolicy", func(t *testing.T) { t.Parallel(); clusterNetworkPolicy(t, lab, r) })
		}
	})
	if *sctp != "" {
		r.take(t, *sctp)
	}
	if *v3 != "" {
		r.takeV3(t, *v3)
	}
	r.write(t)
}
