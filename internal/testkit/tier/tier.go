// Package tier divides the tests between the two commands that run them: `make test`, the first tier, and `make
// test-all`, which runs everything and sets TORTIE_TIER=all. A plain `go test` is the first tier.
package tier

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"os/exec"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/app/config"
)

// Skipped is the reason of each test that the first tier leaves out.
const Skipped = "left to make test-all"

// whole is set by TORTIE_TIER=all.
var whole = func() bool {
	value, _ := config.OS()("TORTIE_TIER")
	return value == "all"
}()

var seed = flag.String("sample", "", "text that decides which requests a sample has; empty is the commit's hash")

// Size returns a test's size (seeds, packets, requests) in this tier: part in the first one, all in make test-all.
func Size[T any](part, all T) T {
	if whole {
		return all
	}
	return part
}

// All leaves a test to make test-all. A run that selects its tests (-run) includes it anyway.
func All(t testing.TB) {
	t.Helper()
	if !whole && flag.Lookup("test.run").Value.String() == "" {
		t.Skip(Skipped)
	}
}

// Sample returns a function that reports whether a test tries a name: one in n of them, others for each commit; in make
// test-all every one. The test prints the flag that takes the same sample again.
func Sample(t testing.TB, n int) (has func(name string) bool) {
	t.Helper()
	if whole {
		return func(string) bool { return true }
	}
	by := *seed
	if by == "" {
		commit, err := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD").Output()
		if err != nil {
			t.Fatalf("git rev-parse HEAD, which decides the sample: %v; choose one by -sample=TEXT", err)
		}
		by = strings.TrimSpace(string(commit))
	}
	t.Logf("one in %d, as by -sample=%s", n, by)
	return func(name string) bool { return chosen(by, name, n) }
}

// chosen reports whether a sample of one in n includes a name.
func chosen(by, name string, n int) bool {
	sum := sha256.Sum256([]byte(by + "\n" + name))
	return binary.BigEndian.Uint64(sum[:])%uint64(n) == 0
}
