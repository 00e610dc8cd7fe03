// Package mesh tests agents in a mesh: real agent processes in namespaces that stand for nodes, a real API server, real
// BGP sessions, and packets between pods, each of which is counted.
package mesh

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/program/controllers"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// asControllers in the environment makes the test binary kube-controllers.
const asControllers = "TORTIE_TEST_AS_CONTROLLERS"

func TestMain(m *testing.M) {
	if os.Getenv(asControllers) != "" {
		os.Exit(controllers.Main(nil))
	}
	os.Exit(meshtest.Main(m))
}
