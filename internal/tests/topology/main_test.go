// Package topology proves docs/bgp.md: the objects and the routers' configurations that stand there are read out of it, applied to a
// cluster of real agents and to real routers, and what then holds is looked at from all sides: sessions, routes in every kernel,
// what the routers have learned, and packets between pods.
package topology

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }
