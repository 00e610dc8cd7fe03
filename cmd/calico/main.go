// Command calico is the CNI plugin that wires a pod: it assigns the address, makes the link and annotates the pod.
// Called by the name calico-ipam, as the image's link does, it is that one.
package main

import (
	_ "github.com/tortie-net/tortie/cmd/internal/early" // answers -v
	"github.com/tortie-net/tortie/cmd/internal/plugin"
)

func main() { plugin.Main() }
