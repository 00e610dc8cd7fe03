// Package needtest skips, in a short run (go test -short, make check), the tests that need more than Go, root and the kernel: the
// lab's programs, Debian packages, a virtual machine. Every other run fails where something is missing.
package needtest

import (
	"os/exec"
	"testing"
)

// Skipped begins the reason of each such skip; what is needed follows. hack/testsum counts by it.
const Skipped = "left out of a short run: needs "

// More skips the test in a short run.
func More(t testing.TB, what string) {
	t.Helper()
	if testing.Short() {
		t.Skip(Skipped + what)
	}
}

// debian has the Debian packages of the programs that tests run.
var debian = map[string]string{
	"ip": "iproute2", "bridge": "iproute2", "ss": "iproute2", "tc": "iproute2", "nft": "nftables", "sysctl": "procps",
}

// Program fails the test if a program is missing, and skips it for that in a short run.
func Program(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil {
		return
	}
	what := name
	if pkg := debian[name]; pkg != "" {
		what += " of Debian's " + pkg
	}
	More(t, what)
	t.Fatalf("%s is missing: run `make deps`", what)
}
