// Command calico-ipam is the CNI IPAM plugin: it assigns and releases addresses in blocks of the datastore.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"

	_ "github.com/tortie-net/tortie/cmd/internal/early" // answers -v
	"github.com/tortie-net/tortie/internal/cni"
	"github.com/tortie-net/tortie/internal/config"
	"github.com/tortie-net/tortie/internal/version"
)

func main() {
	if slices.Equal(os.Args[1:], []string{"-upgrade"}) {
		upgrade()
		return
	}
	skel.PluginMainFuncs(cni.IPAMFuncs(), cni.Versions(), version.About("calico-ipam"))
}

// upgrade moves this node from host-local to calico-ipam. Kubernetes runs it as an init container and tries again.
func upgrade() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := cni.Upgrade(ctx, config.OS(), os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "calico-ipam -upgrade: %v\n", err)
		os.Exit(1)
	}
}
