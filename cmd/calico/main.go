// Command calico is the CNI plugin that connects a pod: it assigns the address, makes the link and annotates the pod.
// Executed by the name calico-ipam, the image's link, it is that plugin.
package main

import (
	_ "github.com/tortie-net/tortie/cmd/internal/early" // answers -v
	"github.com/tortie-net/tortie/cmd/internal/plugin"
)

func main() { plugin.Main() }
