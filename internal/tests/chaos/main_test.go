// Package chaos runs the real plugins of many nodes at once and kills them, and the API server, at any moment. It looks from
// outside only: at processes, at the datastore's objects, at the nodes' kernels and files.
package chaos

import (
	"flag"
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/cnitest"
)

// seed decides which processes are killed, and when. What the processes do meanwhile is the kernel's choice.
var seed = flag.Uint64("seed", 1, "seed of the random choices of the tests")

var programs = cnitest.NewPrograms("./cmd/calico", "./cmd/calico-ipam").Link("calico-ipam", delegate)

func TestMain(m *testing.M) {
	code := m.Run()
	programs.Remove()
	steppers.Remove()
	os.Exit(code)
}

// delegate is another name of calico-ipam.
const delegate = "another-ipam"
