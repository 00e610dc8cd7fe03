// Package mesh proves the agent as a whole: real agent processes in namespaces that stand for nodes, a real API server, real
// BGP sessions between them, real pods' packets, each of which is counted. It looks from outside only.
package mesh

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }
