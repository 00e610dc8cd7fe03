// Package cluster tests Tortie in a real Kubernetes: kubelets, containerd and kube-proxy on a lab's nodes, with usual
// workloads and node disruptions. It counts every packet of its traffic.
package cluster

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }
