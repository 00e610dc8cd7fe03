// Package cluster proves that Kubernetes really uses Tortie: kubelets, containerd and kube-proxy of a lab's nodes, with what people
// run on them, and with what happens to nodes. It looks from outside only, and counts every packet of the traffic that it watches.
package cluster

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }
