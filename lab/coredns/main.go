// Command coredns is CoreDNS with only the plugins of a lab's Corefile: all of them would link the client libraries of
// several clouds.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// Plugins in the order of CoreDNS' plugin.cfg.
	dnsserver.Directives = []string{"ready", "health", "errors", "template", "kubernetes"}
	coremain.Run()
}
