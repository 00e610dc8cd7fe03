package topology

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// document is the page under test.
const document = "docs/bgp.md"

// block is a fenced block of the document.
type block struct {
	language string // sh, yaml, frr, bird
	name     string // name of the router of a configuration
	text     string
}

// chapter returns the blocks of a section whose heading starts with this text.
func chapter(t testing.TB, heading string) []block {
	t.Helper()
	return blocks(t, section(t, heading))
}

func section(t testing.TB, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(labtest.Root(), document))
	errtest.Must(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## "+heading)
	if !ok {
		t.Fatalf("%s has no chapter %q", document, heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// printed returns the lines that a section shows as the output of a command, with one space between words.
func printed(t testing.TB, heading, command string) (lines []string) {
	t.Helper()
	_, rest, ok := strings.Cut(section(t, heading), "\n    $ "+command+"\n")
	if !ok {
		t.Fatalf("%s shows no %s in %q", document, command, heading)
	}
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "    ") {
			break
		}
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

func blocks(t testing.TB, text string) (all []block) {
	t.Helper()
	const fence = "\n```"
	for {
		_, after, ok := strings.Cut(text, fence)
		if !ok {
			return all
		}
		info, after, _ := strings.Cut(after, "\n")
		body, rest, closed := strings.Cut(after, fence)
		if !closed {
			t.Fatalf("%s: a block of %q is not closed", document, info)
		}
		language, name, _ := strings.Cut(info, " ")
		all = append(all, block{language, name, body + "\n"})
		text = rest
	}
}

// apply runs the blocks of commands and objects with kubectl, in order, and returns the remaining blocks: the routers'
// configurations.
func (w *world) apply(t testing.TB, blocks []block) (routers map[string]block) {
	t.Helper()
	routers = map[string]block{}
	for _, b := range blocks {
		switch b.language {
		case "sh":
			w.shell(t, b.text, "")
		case "yaml":
			w.shell(t, "kubectl apply -f -", b.text)
		case "frr", "bird":
			routers[b.name] = b
		default:
			t.Fatalf("%s has a block of %q, which this test does not support", document, b.language)
		}
	}
	return routers
}
