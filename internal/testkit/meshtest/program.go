package meshtest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// Names of the agent's builds. AnotherBuild stands for an upgrade, and differs in its version only.
const (
	Build        = "node"
	AnotherBuild = "node-upgraded"
)

// ProgramsEnv is the environment variable with a directory of prebuilt programs: an emulated processor would take
// minutes to build them.
const ProgramsEnv = "TORTIE_MESH_PROGRAMS"

// versions has the versions of the builds.
var versions = map[string]string{Build: "mesh", AnotherBuild: "mesh-upgraded"}

// builtHere is the directory of the builds, to remove at the end; empty before the first. building lets one test at a
// time build.
var (
	building  sync.Mutex
	builtHere string
)

// build builds the agent under a name, once, and returns the directory. Linking takes seconds, and few packages need
// both.
func build(name string) (dir string, err error) {
	building.Lock()
	defer building.Unlock()
	if builtHere == "" {
		if builtHere, err = os.MkdirTemp("", "tortie-mesh-"); err != nil {
			return "", err
		}
	}
	path := filepath.Join(builtHere, name)
	if _, err := os.Stat(path); err == nil {
		return builtHere, nil
	}
	flags := "-X github.com/tortie-net/tortie/internal/app/version.Version=" + versions[name]
	cmd := exec.Command("go", "build", "-ldflags", flags, "-o", path, "./cmd/node")
	cmd.Dir = labtest.Root()
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return builtHere, nil
}

// Program returns the path of a build of the agent.
func Program(t testing.TB, name string) string {
	t.Helper()
	needtest.More(t, "the agent, built")
	dir, _ := config.OS()(ProgramsEnv)
	if dir == "" {
		var err error
		dir, err = build(name)
		errtest.Must(t, err)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: %s must hold the programs %s and %s", err, ProgramsEnv, Build, AnotherBuild)
	}
	return path
}

// Main is for TestMain: it runs the tests, with all of them in parallel as most of them wait, and removes the builds.
// It returns the exit code. NewCluster bounds how many tests have a cluster at a time; a test's parts never wait for
// each other.
func Main(m *testing.M) int {
	if err := flag.Set("test.parallel", "64"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := writeFigures(); err != nil {
		fmt.Fprintln(os.Stderr, "-figures:", err)
		code = 1
	}
	if builtHere != "" {
		os.RemoveAll(builtHere)
	}
	return code
}
