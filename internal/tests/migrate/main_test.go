// Package migrate runs docs/migrate-from-calico.md on real nodes, command by command, with traffic between pods: no
// packet may be lost but by BIRD. It also checks that the chart accepts the values shown in docs/.
package migrate

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) {
	code := meshtest.Main(m)
	programs.Remove()
	os.Exit(code)
}
