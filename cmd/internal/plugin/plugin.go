// Package plugin holds the main functions of the two CNI plugins. They use the same packages, so that one file of the
// image is both.
package plugin

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/plugin"
)

// IPAMName is the name by which the program is calico-ipam; by any other it is calico.
const IPAMName = "calico-ipam"

// Main runs the plugin of the process' name. It may end the process.
func Main() {
	if filepath.Base(os.Args[0]) == IPAMName {
		IPAM()
		return
	}
	calico()
}

func calico() {
	if slices.Equal(os.Args[1:], []string{"-t"}) {
		if failure := plugin.Probe(os.Stdin); failure != nil {
			_ = failure.Print()
			os.Exit(1)
		}
		return
	}
	boundInput()
	skel.PluginMainFuncs(plugin.Funcs(), plugin.Versions(), version.About("calico"))
}

// IPAM runs calico-ipam, whatever the process' name. It may end the process.
func IPAM() {
	if slices.Equal(os.Args[1:], []string{"-upgrade"}) {
		upgrade()
		return
	}
	boundInput()
	skel.PluginMainFuncs(plugin.IPAMFuncs(), plugin.Versions(), version.About(IPAMName))
}

// maxInput is far more than any network configuration with its previous result.
const maxInput = 16 << 20

// boundInput replaces standard input, which the CNI library reads to the end, with a pipe: more than maxInput bytes end
// the process with CNI's error.
func boundInput() {
	in := os.Stdin
	r, w, err := os.Pipe()
	if err != nil {
		return // out of descriptors: the next error describes it better
	}
	os.Stdin = r
	go func() {
		if n, _ := io.CopyN(w, in, maxInput+1); n > maxInput {
			_ = types.NewError(types.ErrDecodingFailure,
				fmt.Sprintf("network configuration on standard input has more than %d bytes", maxInput), "").Print()
			os.Exit(1)
		}
		_ = w.Close() // the reader has all, or fails to parse a part
	}()
}

// upgrade moves this node from host-local to calico-ipam. It runs in an init container, which Kubernetes restarts.
func upgrade() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := plugin.Upgrade(ctx, config.OS(), os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "calico-ipam -upgrade: %v\n", err)
		os.Exit(1)
	}
}
