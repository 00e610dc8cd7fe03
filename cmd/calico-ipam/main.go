// Command calico-ipam is the CNI IPAM plugin: it assigns and releases addresses in blocks of the datastore.
package main

import (
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/tortie-net/tortie/internal/cni"
	"github.com/tortie-net/tortie/internal/version"
)

func main() {
	about := version.About("calico-ipam")
	if len(os.Args) == 2 && os.Args[1] == "-v" {
		fmt.Println(about)
		return
	}
	skel.PluginMainFuncs(cni.IPAMFuncs(), cni.Versions(), about)
}
