package binaries

import (
	"strings"
	"testing"

	"github.com/tortie-net/tortie/lab/internal/remedy"
)

// Real messages of go, with parts of their remedies.
func TestCauses(t *testing.T) {
	for output, want := range map[string]string{
		`cmd/vminit/main.go:15:2: golang.org/x/sys@v0.47.0: Get "https://proxy.golang.org/golang.org/x/sys/@v/v0.47.0.zip": dial tcp: lookup ` +
			`proxy.golang.org on 10.255.255.53:53: dial udp 10.255.255.53:53: connect: network is unreachable`: "with network",
		"internal/binaries/binaries.go:22:2: golang.org/x/sys@v0.47.0: Get \"http://127.0.0.1:9/golang.org/x/sys/@v/v0.47.0.zip\": dial tcp " +
			"127.0.0.1:9: connect: connection refused": "GOPROXY",
		"internal/binaries/binaries.go:22:2: module lookup disabled by GOPROXY=off": "GOPROXY",
		"runtime: /usr/local/go/pkg/tool/linux_amd64/compile: signal: killed":       "memory",
		"signal: killed": "memory",
		"go: go.mod requires go >= 1.99 (running go 1.26.8; GOTOOLCHAIN=local)":            "GOTOOLCHAIN",
		"exit status 1\nmkdir /x/cache/download/golang.org: no space left on device\nmore": "disk is full",
	} {
		got := remedy.Of(output, causes)
		if !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("remedy of %q is %q, want %q in one line", output, got, want)
		}
	}
	for _, output := range []string{"", "exit status 1\n# x\n./main.go:3:15: undefined: undefinedName",
		"x.go:1: cannot use certificate (variable) as int value"} {
		if got := remedy.Of(output, causes); got != "" {
			t.Errorf("remedy of %q is %q, want none", output, got)
		}
	}
}
