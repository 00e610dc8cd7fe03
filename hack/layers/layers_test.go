package layers

import (
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const module = "github.com/tortie-net/tortie/"

// doors maps libraries to the only packages that may import them.
var doors = map[string][]string{
	"github.com/vishvananda/netlink": {"internal/kernel/netlinkx"},
	"github.com/vishvananda/netns":   {"internal/kernel/netlinkx"},
	"github.com/osrg/gobgp":          {"internal/bgp"},
	"k8s.io/client-go": {"internal/install/definitions", "internal/install/uninstall", "internal/cluster",
		"internal/install/objects", "internal/program/hook", "internal/install", "internal/testkit/labtest", "internal/testkit/meshtest"},
	"k8s.io/apimachinery": {"internal/install/definitions", "internal/install/traffic", "internal/install/uninstall",
		"internal/cluster", "internal/install/objects", "internal/program/hook", "internal/install", "internal/testkit/labtest",
		"internal/testkit/meshtest"},
	"k8s.io/api": {"internal/cluster", "internal/install/objects", "internal/install/traffic",
		"internal/install/uninstall", "internal/program/hook", "internal/install", "internal/testkit/labtest", "internal/testkit/meshtest"},
	"github.com/prometheus": {"internal/agent", "internal/controllers", "internal/install", "internal/app/serving"},
	// the agent and the plugins run no programs; libcni runs IPAM's, and install proves plugins by running them
	"os/exec": {"internal/testkit/needtest", "internal/testkit/tier", "internal/install", "internal/testkit/bgptest",
		"internal/testkit/labtest", "internal/testkit/netnstest", "internal/testkit/pathtest", "internal/testkit/cnitest",
		"internal/testkit/meshtest"},
}

// floors orders the folders of internal/, with cmd above: each imports only folders of lower lines, and none of its own
// line. Inside a folder the compiler prevents import cycles.
var floors = []string{
	"cmd",
	"program",
	"tests",
	"testkit",
	"agent controllers install",
	"plugin cluster",
	"ipam bgp",
	"datastore",
	"app",
	"kernel",
	"policy",
	"api",
}

// Limits that keep the folders of internal/ and the imports between them readable as one picture.
const (
	mostFolders = 15
	mostArrows  = 80
)

// The plugins run for every pod, so that what they link costs time for each.
var (
	plugins        = []string{"cmd/calico", "cmd/calico-ipam"}
	tooHeavyToLink = []string{"k8s.io/", "sigs.k8s.io/", "github.com/prometheus/", "github.com/osrg/", "google.golang.org/"}
	pureIPAM       = []string{"addr.go", "block.go", "cooldown.go", "affinity.go", "explicit.go", "handle.go", "pool.go",
		"state.go", "choose.go", "plan.go"}
	purePackages = []string{"internal/agent/desired", "internal/bgp/peering", "internal/cluster/services",
		"internal/cluster/state", "internal/bgp/policy", "internal/policy"}
	// pureDependencies are packages that decisions must not reach by any import. desired and peering use types of the
	// speaker, and desired of the kernel, so that they link GoBGP and netlink; none links a client of the API server or
	// runs a program. The rest link no network.
	pureDependencies = map[string][]string{
		"internal/agent/desired":    {"k8s.io/", "os/exec"},
		"internal/bgp/peering":      {"k8s.io/", "os/exec"},
		"internal/policy":           {"k8s.io/", "os/exec", "net/http", "github.com/"},
		"internal/bgp/policy":       {"k8s.io/", "os/exec", "net/http", "github.com/osrg/", "github.com/vishvananda/", "github.com/mdlayher/"},
		"internal/cluster/services": {"k8s.io/", "os/exec", "net/http", "github.com/osrg/", "github.com/vishvananda/", "github.com/mdlayher/"},
		"internal/cluster/state":    {"k8s.io/", "os/exec", "net/http", "github.com/osrg/", "github.com/vishvananda/", "github.com/mdlayher/"},
		"internal/ipam/inventory":   {"k8s.io/", "os/exec"},
	}
	notPure     = []string{"os", "net", "net/http", "syscall", "context", "io", "golang.org/x/sys", module + "internal/datastore"}
	environment = []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"}
	endings     = map[string][]string{"os": {"Exit"}, "log": {"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"}}
	testOnly    = []string{"internal/testkit/bgptest", "internal/testkit/labtest", "internal/testkit/labstore", "internal/testkit/cnitest",
		"internal/testkit/meshtest", "internal/testkit/netnstest", "internal/testkit/pathtest", "internal/testkit/nfttest",
		"internal/testkit/policytest", "internal/testkit/datastoretest", "internal/testkit/desiredtest", "internal/testkit/logtest",
		"internal/testkit/needtest", "internal/testkit/errtest", "internal/testkit/difftest", "internal/testkit/waittest",
		"internal/testkit/tier", "internal/testkit/usagetest", "internal/tests/rights/fence"}
	mayReadSettings = "internal/app/config"
)

func load(t *testing.T) map[string]*packages.Package {
	t.Helper()
	cfg := &packages.Config{
		Dir: filepath.Join("..", ".."),
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedFiles | packages.NeedSyntax |
			packages.NeedCompiledGoFiles,
	}
	all, err := packages.Load(cfg, "./...")
	errtest.Must(t, err)
	own := map[string]*packages.Package{}
	for _, p := range all {
		for _, e := range p.Errors {
			t.Errorf("loading %s: %v", p.PkgPath, e)
		}
		// Directories with only tests are not part of the product.
		if name, ok := strings.CutPrefix(p.PkgPath, module); ok && len(p.CompiledGoFiles) > 0 {
			own[name] = p
		}
	}
	if len(own) < 10 {
		t.Fatalf("found only %d packages: the rules would check nothing", len(own))
	}
	return own
}

func TestLayers(t *testing.T) {
	own := load(t)
	names := slices.Sorted(maps.Keys(own))
	t.Run("doors", func(t *testing.T) {
		for _, name := range names {
			for path := range own[name].Imports {
				checkDoor(t, name, path)
			}
		}
	})
	t.Run("floors", func(t *testing.T) { checkFloors(t, own) })
	t.Run("plugins stay small", func(t *testing.T) {
		for _, name := range plugins {
			for _, path := range links(own[name], tooHeavyToLink) {
				t.Errorf("%s links %s", name, path)
			}
		}
	})
	t.Run("calls", func(t *testing.T) {
		for _, name := range names {
			for _, file := range own[name].Syntax {
				checkCalls(t, name, file)
			}
		}
	})
	t.Run("decisions are pure", func(t *testing.T) {
		checkPure(t, own["internal/ipam"], pureIPAM...)
		for _, name := range purePackages {
			checkPure(t, own[name])
		}
		for name, forbidden := range pureDependencies {
			if own[name] == nil {
				t.Errorf("there is no package %s: was it renamed?", name)
				continue
			}
			for _, path := range links(own[name], forbidden) {
				t.Errorf("%s links %s, directly or not: it must decide without input or output", name, path)
			}
		}
	})
	t.Run("test helpers stay in tests", func(t *testing.T) {
		for _, name := range names {
			for path := range own[name].Imports {
				if slices.Contains(testOnly, strings.TrimPrefix(path, module)) && !slices.Contains(testOnly, name) {
					t.Errorf("%s imports %s, which is for tests", name, path)
				}
			}
		}
	})
}

func checkDoor(t *testing.T, name, path string) {
	t.Helper()
	for library, allowed := range doors {
		if (path == library || strings.HasPrefix(path, library+"/")) && !slices.Contains(allowed, name) {
			t.Errorf("%s imports %s: only %s may", name, path, strings.Join(allowed, ", "))
		}
	}
}

// folder returns the folder of internal/ that a package lies in, or cmd.
func folder(name string) string {
	if below, ok := strings.CutPrefix(name, "internal/"); ok {
		name = below
	}
	first, _, _ := strings.Cut(name, "/")
	return first
}

func checkFloors(t *testing.T, own map[string]*packages.Package) {
	t.Helper()
	floor := map[string]int{}
	for i, line := range floors {
		for name := range strings.FieldsSeq(line) {
			floor[name] = len(floors) - i
		}
	}
	if n := len(floor) - 1; n > mostFolders {
		t.Errorf("internal/ has %d folders: more than %d are no picture", n, mostFolders)
	}
	arrows := map[[2]string]bool{}
	for name, p := range own {
		from := folder(name)
		if floor[from] == 0 {
			t.Errorf("%s: the folder %s has no floor: give it its place in this test", name, from)
			continue
		}
		for path := range p.Imports {
			lower, ok := strings.CutPrefix(path, module)
			if to := folder(lower); ok && to != from {
				arrows[[2]string{from, to}] = true
				if floor[to] >= floor[from] {
					t.Errorf("%s imports %s, which is not below it", name, lower)
				}
			}
		}
	}
	if len(arrows) > mostArrows {
		t.Errorf("%d pairs of folders import each other's packages, more than %d", len(arrows), mostArrows)
	}
}

// links returns the forbidden packages that a package links, directly or not. A name that ends with a slash includes
// all packages below it.
func links(p *packages.Package, forbidden []string) []string {
	seen := map[string]bool{}
	var found []string
	var visit func(p *packages.Package)
	visit = func(p *packages.Package) {
		if seen[p.PkgPath] {
			return
		}
		seen[p.PkgPath] = true
		if own := strings.HasPrefix(p.PkgPath, module); !own && slices.ContainsFunc(forbidden, func(f string) bool {
			return p.PkgPath == f || strings.HasSuffix(f, "/") && strings.HasPrefix(p.PkgPath, f)
		}) {
			found = append(found, p.PkgPath)
		}
		for _, next := range p.Imports {
			visit(next)
		}
	}
	visit(p)
	return found
}

// checkCalls finds reads of the environment outside of config, and exits outside of main functions' packages.
func checkCalls(t *testing.T, name string, file *ast.File) {
	t.Helper()
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		if pkg.Name == "os" && slices.Contains(environment, sel.Sel.Name) && name != mayReadSettings {
			t.Errorf("%s uses os.%s: settings come through %s", name, sel.Sel.Name, mayReadSettings)
		}
		if slices.Contains(endings[pkg.Name], sel.Sel.Name) && !strings.HasPrefix(name, "cmd/") {
			t.Errorf("%s uses %s.%s: only commands may end the process", name, pkg.Name, sel.Sel.Name)
		}
		return true
	})
}

// checkPure finds imports for input and output in the named files of a package; without names in all of them.
func checkPure(t *testing.T, p *packages.Package, names ...string) {
	t.Helper()
	checked := 0
	for i, path := range p.CompiledGoFiles {
		file := filepath.Base(path)
		if len(names) > 0 && !slices.Contains(names, file) {
			continue
		}
		checked++
		for _, spec := range p.Syntax[i].Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			errtest.Must(t, err)
			for _, bad := range notPure {
				if imported == bad || strings.HasPrefix(imported, bad+"/") && bad != "net" {
					t.Errorf("%s imports %s: it must decide without input or output", file, imported)
				}
			}
		}
	}
	if checked < max(1, len(names)) {
		t.Errorf("checked only %d files of %s: were they renamed?", checked, p.PkgPath)
	}
}
