// Command networkpolicy runs the specs of Kubernetes' end-to-end suite that are about NetworkPolicy against the cluster
// of -kubeconfig, with the flags of that suite.
package main

import (
	"flag"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"

	// The specs, and registrations that the framework needs.
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/network/netpol"
)

// runner replaces testing.T, which only a test binary has.
type runner struct{ failed bool }

func (r *runner) Fail() { r.failed = true }

func main() {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	r := &runner{}
	if !ginkgo.RunSpecs(r, "NetworkPolicy", suite, reporter) || r.failed {
		os.Exit(1)
	}
}
