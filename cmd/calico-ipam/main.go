// Command calico-ipam is the CNI IPAM plugin: it assigns and releases addresses in blocks of the datastore. In the
// image it is a link to cmd/calico.
package main

import (
	_ "github.com/tortie-net/tortie/cmd/internal/early" // answers -v
	"github.com/tortie-net/tortie/cmd/internal/plugin"
)

func main() { plugin.IPAM() }
