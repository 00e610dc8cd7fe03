// Command clusternetworkpolicy runs network-policy-api's conformance tests of ClusterNetworkPolicy against the cluster
// of KUBECONFIG, with the flags of that suite and of a test binary.
//
// On a kernel without SCTP, the servers of that protocol are left out of the pods, which would never be ready, and the
// tests that send SCTP packets are skipped with that reason.
package main

import (
	"flag"
	"regexp"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	suiteconfig "sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/flags"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

var (
	onlySCTP  = flag.Bool("only-sctp", false, "run the tests that send SCTP, and no others")
	timeScale = flag.Int("timescale", 1,
		"multiply the suite's time-outs for a slow machine; that of one connection by 4 at most, as each refusal takes as long")
)

func main() {
	testing.Main(regexp.MatchString, []testing.InternalTest{{Name: "TestConformance", F: testConformance}}, nil, nil)
}

func testConformance(t *testing.T) {
	cfg, err := config.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS, cfg.Burst = 100, 100
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := v1beta1.Install(c.Scheme()); err != nil {
		t.Fatal(err)
	}
	options := suite.Options{
		Client: c, ClientSet: clients, KubeConfig: *cfg, Debug: *flags.ShowDebug, CleanupBaseResources: *flags.CleanupBaseResources,
		SupportedFeatures:          suite.ParseSupportedFeatures(*flags.SupportedFeatures),
		ExemptFeatures:             suite.ParseSupportedFeatures(*flags.ExemptFeatures),
		EnableAllSupportedFeatures: *flags.EnableAllSupportedFeatures, TimeoutConfig: suiteconfig.DefaultTimeoutConfig(),
	}
	options.TimeoutConfig.RequestTimeout *= time.Duration(min(*timeScale, 4))
	for _, limit := range []*time.Duration{
		&options.TimeoutConfig.CreateTimeout, &options.TimeoutConfig.DeleteTimeout, &options.TimeoutConfig.GetTimeout,
		&options.TimeoutConfig.NamespacesMustBeReady, &options.TimeoutConfig.PokeTimeout,
	} {
		*limit *= time.Duration(*timeScale)
	}
	sctp := kernelHasSCTP()
	if !sctp {
		options.BaseManifests = withoutSCTP(t)
	}
	s := suite.New(options)
	s.Setup(t)
	for _, test := range tests.ConformanceTests {
		if *onlySCTP && !slices.Contains(ofSCTP, test.ShortName) {
			continue
		}
		t.Run(test.ShortName, func(t *testing.T) {
			if !sctp && slices.Contains(ofSCTP, test.ShortName) {
				t.Skip("not run: it sends SCTP, and this kernel has none")
			}
			test.Run(t, s)
		})
	}
}

// kernelHasSCTP reports whether pods can open an SCTP socket: they have the kernel of this program.
func kernelHasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}
