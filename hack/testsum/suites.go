package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// suite is a group of tests: commands that pass or fail as a whole, or one run of go test.
type suite struct {
	name, what string
	root       string
	beside     bool // it runs beside those that follow, by what these leave of the processors
	vital      bool // the rest cannot run without it
	steps      []step
	tests      *goTest
}

// step is one command; it counts as one test.
type step struct {
	name string
	dir  string // below the root
	args []string
}

// goTest is one run of `go test -json`.
type goTest struct {
	dir    string // below the root: the module
	env    []string
	flags  []string
	own    []string // flags of the tests themselves
	only   string   // patterns of packages with spaces between them; "" is ./...
	except []string // packages, by their directory in the module
	first  []string // packages to begin with, by their directory in the module; the others follow in their order
	// without excludes the packages whose tests link this one, named by its directory in the module.
	without string
	// cached takes the results of go test's cache, where nothing has changed.
	cached bool
}

// ipipPackage needs a kernel with IPIP, or a virtual machine with one.
const ipipPackage = "internal/kernel/ipip"

// perfPackage needs the virtual machine that counts instructions.
const perfPackage = "internal/tests/perf"

// flowtablePackage needs a kernel with flowtables, and has bounds in seconds, which the counting machine keeps whatever else the computer does.
const flowtablePackage = "internal/tests/flowtable"

// peerTests, of flowtablePackage, need devices for single nodes, which only Linux 6.19 and later gain by. ipipTests are those that differ there.
const (
	peerTests = "^Test(" + peerNames + ")$"
	ipipTests = "^Test(" + peerNames + "|Passes|Service|Denied)$"
	peerNames = "PeersUnderTraffic|PeersSource|PeersRouteChange"
)

// tcpAOPackage needs a kernel with TCP-AO, and BIRD, of Debian's unstable release.
const tcpAOPackage = "internal/tests/tcpao"

// wireGuardPackages need a kernel with WireGuard.
var wireGuardPackages = []string{"internal/kernel/wireguard", "internal/tests/wireguard"}

// clusterPackages have labs of their own, with nodes that kubelets and containerd run on: one lab at a time is enough for a machine.
var clusterPackages = []string{"internal/tests/cluster", "internal/tests/migrate", "internal/install/uninstall", "internal/tests/conformance"}

// faultsPackage is run by make faults: a fault is told of after seconds or minutes, and there are thirty.
const faultsPackage = "internal/tests/faults"

// tunnelTest are two tests of tunnelPackage, which have agents and an API server in one kernel with IPIP, or with TCP-AO; they make the virtual
// machine by themselves. No other package may have tests of these names: the suite of all packages is without them.
const (
	tunnelTest    = "^(TestMeshOverIPIP|TestTCPAOFromSecret)$"
	tunnelPackage = "internal/tests/mesh"
)

// interopTests, of interopPackage, are run with BIRD 3, too, in a virtual machine without FRR, nft and ss.
const (
	interopTests   = "^Test(Mesh|NodeRestarts|NodeRestartsUnderBFD|SilentRouter|BFDAuthentication|LinkLocal)$"
	interopPackage = "internal/bgp/interop"
)

// everything is the values that enable what is off by default.
const everything = "--set migrateFromHostLocal=true,monitoring.metrics.enabled=true,monitoring.metrics.perPeer=true,monitoring.metrics.annotations=true," +
	"monitoring.dashboard.enabled=true,monitoring.alerts.enabled=true,monitoring.podMonitor.enabled=true,wireguard.enabled=true,wireguard.required=true,wireguard.threaded=true,wireguard.rotate=720h"

// longest are the packages that take minutes: if one of them came last, a processor would have nothing else to do. Those that wait for the
// most part have one that works beside.
var longest = []string{
	"internal/tests/chaos", tunnelPackage, "internal/program/controllers", "internal/tests/rights", "internal/agent", "internal/tests/topology",
}

// wrappers of Kubernetes in lab/ have no tests, and to vet them means to compile all of Kubernetes once more.
var wrappers = []string{"cmd/hyperkube", "internal/etcd"}

// wholeNodes is linked by tests that run agents on nodes of their own, all of which need the lab.
const wholeNodes = "internal/testkit/meshtest"

// sets are the suites of make's targets check, test and test-docs.
var sets = map[string]func(root string) []suite{"check": checks, "test": suites, "docs": documents}

// checks lists the suites of `make check`, which need Go, root and nothing else: what more a test needs, it says, and is left out.
func checks(root string) []suite {
	all := []suite{
		{name: "format", what: "gofmt and go vet", steps: []step{
			gofmt, {name: "go vet in .", args: []string{"go", "vet", "./..."}},
		}},
		{name: "layers", what: "imports between the packages",
			tests: &goTest{dir: "hack", only: "./layers"}},
		// Most of these tests wait, so that more packages than processors may run.
		{name: "short", what: "units and network namespaces, model checks in short; results of unchanged packages are kept",
			tests: &goTest{flags: []string{"-short", "-p=4", "-timeout=5m"}, without: wholeNodes, cached: true}},
	}
	return below(root, all)
}

// documents lists the suites of `make test-docs`: what is about documents, messages and tools, and says nothing of the product.
func documents(root string) []suite {
	scanner := filepath.Join(root, "bin", "govulncheck")
	return below(root, []suite{
		{name: "documents", what: "links, what programs say, vulnerabilities, and the tools that look after them",
			tests: &goTest{dir: "hack", flags: []string{"-timeout=10m"}, only: "./generate ./messages ./testsum ./vulns"}},
		{name: "vulns", what: "known vulnerabilities", steps: []step{
			{name: "build govulncheck", dir: "hack/govulncheck", args: []string{"go", "build", "-o", scanner, "tool"}},
			{name: "govulncheck", dir: "hack", args: []string{"go", "run", "./vulns", "-govulncheck", scanner}},
		}},
		{name: "bench", what: "the benchmarks, as few runs as can be, on a real API server",
			tests: &goTest{dir: "hack", flags: []string{"-timeout=10m"}, only: "./bench"}},
	})
}

func below(root string, all []suite) []suite {
	for i := range all {
		all[i].root = root
	}
	return all
}

// suites lists all suites in the order in which they run: seconds first, then minutes.
func suites(root string) []suite {
	lab := filepath.Join(root, "bin", "lab")
	env := []string{"TORTIE_LAB=" + lab}
	all := []suite{
		// The first of all: what it needs must come from itself, and not from an earlier suite.
		{name: "demo", what: "make demo, as a new user: from a fresh clone with an empty cache, interrupted four times and run through",
			tests: &goTest{dir: "lab", flags: []string{"-timeout=45m", "-v", "-run=^TestDemo$"}, only: "./e2e"}},
		{name: "lint", what: "format, vet, staticcheck", steps: lintSteps(root)},
		{name: "tools", what: "the layers of imports, what programs are linked from, and what makes the image",
			tests: &goTest{dir: "hack", flags: []string{"-timeout=10m"}, only: "./layers ./modules ./image"}},
		programs(lab),
		{name: "image", what: "what the image weighs, that its programs start, and that another directory gives the same",
			tests: &goTest{dir: "hack", flags: []string{"-timeout=15m"}, only: "./image/built"}},
		{name: "generated", what: "files made from other files are up to date",
			steps: []step{
				{name: "generate-check", args: []string{"make", "--no-print-directory", "generate-check"}},
				{name: "helm lint", args: []string{"sh", "-c", `"$(` + lab + ` build helm)" lint --strict charts/tortie`}},
				{name: "helm lint, all of it", args: []string{"sh", "-c", `"$(` + lab + ` build helm)" lint --strict charts/tortie ` + everything}},
			}},
	}
	all = append(all, counted(lab)...)
	all = append(all, []suite{
		// Most of these tests wait, so that more packages than processors may run.
		{name: "unit", what: "units, network namespaces, real etcd and kube-apiserver",
			tests: &goTest{env: env, flags: []string{"-timeout=20m", "-p=3", "-skip=" + tunnelTest}, first: longest,
				except: slices.Concat([]string{ipipPackage, perfPackage, flowtablePackage, tcpAOPackage, faultsPackage}, wireGuardPackages, clusterPackages)}},
		{name: "lab", what: "the lab itself: nodes come, work, and leave nothing",
			tests: &goTest{dir: "lab", env: env, flags: []string{"-timeout=30m", "-p=1"}, except: append([]string{"e2e"}, wrappers...)}},
		{name: "cluster", what: "what Kubernetes does with pods and nodes, attacks, migration, uninstallation, others' suites for policy: on real nodes, with every packet counted",
			tests: &goTest{env: env, flags: []string{"-timeout=15m", "-p=1"}, only: "./" + strings.Join(clusterPackages, " ./")}},
	}...)
	return below(root, all)
}

// programs builds what the suites after it run.
func programs(lab string) suite {
	return suite{name: "programs", what: "Tortie's image; Kubernetes and helm from Go modules (about 10 minutes, once)", vital: true,
		steps: []step{
			{name: "Debian packages", args: []string{"make", "--no-print-directory", "deps"}},
			{name: "image", args: []string{"make", "--no-print-directory", "image"}},
			{name: "image of all architectures", args: []string{"make", "--no-print-directory", "image-all"}},
			{name: "lab build", args: []string{lab, "build"}},
		}}
}

// counted are the suites in virtual machines whose time is the number of their instructions: they take what other suites leave of the processors.
func counted(lab string) []suite {
	one := func(name, what, options, packages string, flags, own []string) suite {
		exec := "-exec=" + lab + " vmtest -timeout 50m -count " + options
		return suite{name: name, what: what, beside: true,
			tests: &goTest{env: []string{"CGO_ENABLED=0"}, flags: append([]string{"-timeout=55m", "-p=1", exec}, flags...), own: own, only: packages}}
	}
	return []suite{
		// Whose machines take longest.
		{name: "demo-ipip", what: "the demo with IPIP run through, from a fresh clone, in a virtual machine that counts instructions", beside: true,
			tests: &goTest{dir: "lab", flags: []string{"-timeout=55m", "-v", "-run=^TestDemoIPIP$"}, only: "./e2e"}},
		{name: "tunnel", what: "agents that restart, pools that change, WireGuard turned on and off, over tunl0; TCP-AO from a Secret: in such machines", beside: true,
			tests: &goTest{env: []string{"TORTIE_LAB=" + lab}, flags: []string{"-timeout=55m", "-run=" + tunnelTest}, only: "./" + tunnelPackage}},
		one("perf", "instructions of packets and of our own work, in a virtual machine that counts them: none more than testdata/ratios.csv says",
			"", "./"+perfPackage, []string{"-run=TestInstructions"}, []string{"-kernel=stable", "-quick"}),
		one("perf-newest", "the same on Debian's newest kernel, which takes IPIP by a device for each peer",
			"-newest", "./"+perfPackage, []string{"-run=TestInstructions"}, []string{"-kernel=newest", "-quick"}),
		one("flowtable", "what passes the kernel's flowtable, in such a machine: policies, NAT, routes, devices, time-outs, restarts",
			"-nft", "./"+flowtablePackage, []string{"-skip=" + peerTests}, nil),
		one("flowtable-newest", "IPIP in the flowtable of Debian's newest kernel, by a device for each peer",
			"-newest -nft", "./"+flowtablePackage, []string{"-run=" + ipipTests + "/IPIP"}, nil),
		one("bird3", "a mesh and BFD with BIRD 3 of Debian's unstable release, in such a machine",
			"-newest -bird", "./"+interopPackage, []string{"-run=" + interopTests}, nil),
		one("tcpao", "BGP sessions with TCP-AO, in such a machine with Debian's newest kernel, beside its newest BIRD",
			"-newest -bird", "./"+tcpAOPackage, nil, nil),
		one("wireguard", "WireGuard's devices, and its switch under traffic, in such a machine",
			"", "./"+strings.Join(wireGuardPackages, " ./"), nil, nil),
		one("ipip", "tunl0, and devices for single nodes, in such a machine",
			"", "./"+ipipPackage, nil, nil),
	}
}

// gofmt lists the files that it would change.
var gofmt = step{name: "gofmt", args: []string{"sh", "-c",
	`bad=$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l); [ -z "$bad" ] || { echo "gofmt would change:"; echo "$bad"; exit 1; }`}}

func lintSteps(root string) []step {
	staticcheck := filepath.Join(root, "bin", "staticcheck")
	steps := []step{
		gofmt,
		{name: "build staticcheck", dir: "hack", args: []string{"go", "build", "-o", staticcheck, "honnef.co/go/tools/cmd/staticcheck"}},
	}
	for _, module := range []string{".", "hack", "lab"} {
		packages := "$(go list ./... | grep -Ev '/(cmd/hyperkube|internal/etcd)$')"
		steps = append(steps,
			step{name: "go vet in " + module, dir: module, args: []string{"sh", "-c", "go vet " + packages}},
			step{name: "staticcheck in " + module, dir: module, args: []string{"sh", "-c", staticcheck + " " + packages}})
	}
	return steps
}
