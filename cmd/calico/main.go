// Command calico is the CNI plugin that wires a pod: it assigns the address, makes the link and annotates the pod.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/tortie-net/tortie/internal/cni"
	"github.com/tortie-net/tortie/internal/version"
)

func main() {
	about := version.About("calico")
	switch {
	case slices.Equal(os.Args[1:], []string{"-v"}):
		fmt.Println(about)
	case slices.Equal(os.Args[1:], []string{"-t"}):
		if failure := cni.Probe(os.Stdin); failure != nil {
			_ = failure.Print()
			os.Exit(1)
		}
	default:
		skel.PluginMainFuncs(cni.Funcs(), cni.Versions(), about)
	}
}
