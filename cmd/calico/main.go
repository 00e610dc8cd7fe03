// Command calico is the CNI plugin that wires a pod: it has the address assigned, makes the link and annotates the pod.
package main

import (
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/tortie-net/tortie/internal/cni"
	"github.com/tortie-net/tortie/internal/version"
)

func main() {
	about := version.About("calico")
	if len(os.Args) == 2 && os.Args[1] == "-v" {
		fmt.Println(about)
		return
	}
	skel.PluginMainFuncs(cni.Funcs(), cni.Versions(), about)
}
