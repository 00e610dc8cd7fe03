// Package needtest skips, in a short run (go test -short, make check), the tests that need more than Go, root of a user
// namespace and the kernel: the lab's programs, Debian packages, a virtual machine, the machine's own root. In every
// other run a missing dependency fails the test.
package needtest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Skipped is the prefix of the reason of each such skip; hack/testsum counts skips by this prefix.
const Skipped = "left out of a short run: needs "

// More skips the test in a short run; what is its requirement, for the reason.
func More(t testing.TB, what string) {
	t.Helper()
	if testing.Short() {
		t.Skip(Skipped + what)
	}
}

// machineIDs is the content of /proc/self/uid_map in the first user namespace of a machine.
const machineIDs = "0 0 4294967295"

// Root fails the test, or skips it in a short run, if the process is not root in the machine's first user namespace:
// root of another one (hack/rootless.sh) lacks some rights, as does any other user. what is the right that the test
// needs.
func Root(t testing.TB, what string) {
	t.Helper()
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 && strings.Join(strings.Fields(string(ids)), " ") == machineIDs {
		return
	}
	what = "root of the machine, for " + what
	More(t, what)
	t.Fatalf("the test needs %s: run it with sudo", what)
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
