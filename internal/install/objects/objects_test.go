package objects

import (
	"strings"
	"testing"
)

func TestNameFor(t *testing.T) {
	seen := map[string]string{}
	for _, node := range []string{"node1", "node1.example.org", "node1-example.org", "node1-example-org", strings.Repeat("a", 253),
		strings.Repeat("a", 252)} {
		name := NameFor("tortie-uninstall", node)
		if len(name) > maxName || strings.ContainsAny(name, ".") || seen[name] != "" || name != NameFor("tortie-uninstall", node) {
			t.Errorf("%s for %s, and for %s", name, node, seen[name])
		}
		seen[name] = node
	}
}
