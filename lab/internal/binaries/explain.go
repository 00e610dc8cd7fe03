package binaries

import (
	"regexp"
	"strings"
)

// causes are what the go command prints when something beside the sources is missing, and what helps.
var causes = []struct {
	said   *regexp.Regexp
	remedy string
}{
	{regexp.MustCompile(`(?m)^.*no space left on device.*$`),
		"the disk is full: Go keeps what it has compiled in GOCACHE and modules in GOMODCACHE, the lab its programs in ~/.cache/tortie; " +
			"remove files, or set GOCACHE, GOMODCACHE and XDG_CACHE_HOME to directories of a larger file system"},
	{regexp.MustCompile(`(?m)^.*(?:signal: killed|cannot allocate memory|runtime: out of memory).*$`),
		"the memory was not enough to compile Kubernetes: end other programs, or give this machine or container more"},
	{regexp.MustCompile(`(?m)^.*requires go >= .*$`),
		"this release of Go is too old, and may not download another (GOTOOLCHAIN): install the one that is named"},
	{regexp.MustCompile(`(?m)^.*(?:dial tcp|dial udp|proxyconnect|TLS handshake timeout|lookup disabled by GOPROXY=off|connection reset by peer|i/o timeout|: certificate ).*$`),
		"Go modules cannot be downloaded: there is no network, or GOPROXY names no server that answers; run this once with network, or bring another machine's GOMODCACHE"},
}

// saidLimit is how much of a line of Go's is repeated.
const saidLimit = 300

// explain turns what the go command printed into a line with the remedy: "" if it says nothing that we know, as of a compiler's errors.
func explain(output string) string {
	for _, c := range causes {
		if line := strings.TrimSpace(c.said.FindString(output)); line != "" {
			return c.remedy + ` ("` + line[:min(len(line), saidLimit)] + `")`
		}
	}
	return ""
}
