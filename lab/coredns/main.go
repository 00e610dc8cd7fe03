// Command coredns is CoreDNS with the few plugins that a lab's Corefile names: all of them would take in the client libraries of
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
	// The order in which a query passes the plugins, as in CoreDNS' own plugin.cfg.
	dnsserver.Directives = []string{"ready", "health", "errors", "template", "kubernetes"}
	coremain.Run()
}
