// Package migrate follows docs/migrate-from-calico.md on real nodes, command by command, while pods talk to each other: no packet may
// be lost. It also sees to it that the chart takes the values that docs/ shows. It has no other code.
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
