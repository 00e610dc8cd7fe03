// Package topology tests docs/bgp.md: the objects and router configurations are read from the page and applied to a cluster of real agents and
// to real routers. Then sessions, routes in every kernel, paths learned by the routers, and packets between pods are checked.
package topology

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }
