// Package mesh tests agents in a mesh: real agent processes in namespaces that stand for nodes, a real API server, real
// BGP sessions, and packets between pods, each of which is counted.
package mesh

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }
