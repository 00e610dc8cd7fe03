// Command calico is the CNI plugin that wires a pod: it assigns the address, makes the link and annotates the pod.
package main

import (
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"

	_ "github.com/tortie-net/tortie/cmd/internal/early" // answers -v
	"github.com/tortie-net/tortie/internal/cni"
	"github.com/tortie-net/tortie/internal/version"
)

func main() {
	if slices.Equal(os.Args[1:], []string{"-t"}) {
		if failure := cni.Probe(os.Stdin); failure != nil {
			_ = failure.Print()
			os.Exit(1)
		}
		return
	}
	skel.PluginMainFuncs(cni.Funcs(), cni.Versions(), version.About("calico"))
}
