// Package upgrade tests the way from the last release to these sources, and back, in a real Kubernetes: packets between
// pods of all nodes are counted, and pods come and go all the while.
package upgrade

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }
