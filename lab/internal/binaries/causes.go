package binaries

import (
	"regexp"

	"github.com/tortie-net/tortie/lab/internal/remedy"
)

// causes are messages of the go command about missing dependencies other than sources, with remedies.
var causes = []remedy.Cause{
	{Said: regexp.MustCompile(`(?m)^.*no space left on device.*$`),
		Remedy: "the disk is full: Go keeps what it has compiled in GOCACHE and modules in GOMODCACHE, the lab its programs in " +
			"~/.cache/tortie; remove files, or set GOCACHE, GOMODCACHE and XDG_CACHE_HOME to directories of a larger file system"},
	{Said: regexp.MustCompile(`(?m)^.*(?:signal: killed|cannot allocate memory|runtime: out of memory).*$`),
		Remedy: "the memory was not enough to compile Kubernetes: end other programs, or give this machine or container more"},
	{Said: regexp.MustCompile(`(?m)^.*requires go >= .*$`),
		Remedy: "this release of Go is too old, and may not download another (GOTOOLCHAIN): install the one that is named"},
	{Said: regexp.MustCompile(`(?m)^.*(?:dial tcp|dial udp|proxyconnect|TLS handshake timeout|lookup disabled by GOPROXY=off|connection ` +
		`reset by peer|i/o timeout|: certificate ).*$`),
		Remedy: "Go modules cannot be downloaded: there is no network, or GOPROXY names no server that answers; run this once with network, or " +
			"bring another machine's GOMODCACHE"},
}
