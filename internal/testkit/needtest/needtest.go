// Package needtest skips, in a short run (go test -short, make check), the tests that need more than Go, root and the kernel: the lab's
// programs, Debian packages, a virtual machine. In every other run a missing dependency fails the test.
package needtest

import (
	"os/exec"
	"testing"
)

// Skipped is the prefix of the reason of each such skip; hack/testsum counts skips by its first words.
const Skipped = "left out of a short run: needs "

// More skips the test in a short run, with what it needs as the reason.
func More(t testing.TB, what string) {
	t.Helper()
	if testing.Short() {
		t.Skip(Skipped + what)
	}
}

// debian maps programs to their Debian packages.
var debian = map[string]string{
	"ip": "iproute2", "bridge": "iproute2", "ss": "iproute2", "tc": "iproute2", "nft": "nftables", "sysctl": "procps",
}

// Program fails the test if a program is missing, or skips it in a short run.
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
