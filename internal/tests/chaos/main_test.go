// Package chaos runs the real plugins of many nodes concurrently and kills them, and the API server, at random times.
// It observes processes, the datastore's objects, and the nodes' kernels and files.
package chaos

import (
	"flag"
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/cnitest"
)

// seed decides which processes are killed, and when. Their scheduling is up to the kernel.
var seed = flag.Uint64("seed", 1, "seed of the random choices of the tests")

// programs are a release's programs, except that the tool's move does not wait 160 s for plugins: the API server
// refuses their late writes.
var programs = newPrograms().Replacing(
	"internal/controllers/migrate/move.go", "drainTime = 160 * time.Second", "drainTime = time.Duration(0)")

func newPrograms() *cnitest.Programs {
	return cnitest.NewPrograms("./cmd/calico", "./cmd/calico-ipam", "./cmd/tortie").Link("calico-ipam", delegate).
		Link("tortie", "kube-controllers").Link("tortie", "node")
}

func TestMain(m *testing.M) {
	code := m.Run()
	programs.Remove()
	steppers.Remove()
	os.Exit(code)
}

// delegate is a second name of calico-ipam.
const delegate = "another-ipam"
