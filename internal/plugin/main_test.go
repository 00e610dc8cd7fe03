package plugin_test

import (
	"flag"
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/cnitest"
)

// programs are the plugins, the test's chained, and the CNI project's own.
var programs = cnitest.NewPrograms("./cmd/calico", "./cmd/calico-ipam", "./internal/plugin/testdata/chained",
	"github.com/containernetworking/plugins/plugins/ipam/host-local", "github.com/containernetworking/plugins/plugins/main/bridge",
	"github.com/containernetworking/plugins/plugins/main/macvlan")

func TestMain(m *testing.M) {
	// Most of a test is waiting, for the API server or for a deadline. -parallel overrides this.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}
