// Package topology tests docs/bgp.md: the objects and router configurations are read from the page and applied to a
// cluster of real agents and to real routers. Then sessions, routes in every kernel, paths learned by the routers, and
// packets between pods are checked. The same is done with addresses that kube-controllers gives to Services.
package topology

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// programs is kube-controllers; meshtest builds the agent.
var programs = cnitest.NewPrograms("./cmd/kube-controllers")

func TestMain(m *testing.M) {
	code := meshtest.Main(m)
	programs.Remove()
	os.Exit(code)
}
