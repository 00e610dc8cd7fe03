package messages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	// joint matches a placeholder, or a separator between wrapped texts.
	joint = regexp.MustCompile(`\.\.\.|[0-9]+|: | \(`)
)

// lastError is the highest number of an error of Linux, EHWPOISON.
const lastError = 133

// shortest is the minimum length of a specific text.
const shortest = 6

// installErrors returns the messages of the section Errors of docs/install.md. A row may have several. A message may be continued by the
// kernel's error text, so each part must be in a text of the programs or of the kernel.
func installErrors(t *testing.T, texts map[string]bool) (onPage map[string]bool) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Errors\n")
	all := strings.Join(append(keys(texts), kernelErrors()...), "\n")
	onPage = map[string]bool{}
	for line := range strings.Lines(section) {
		cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` | ")
		if !ok || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, found := range quoted.FindAllStringSubmatch("`"+cell+"`", -1) {
			onPage[found[1]] = true
			for _, part := range joint.Split(found[1], -1) {
				if part = strings.Trim(part, " :="); len(part) >= shortest && !strings.Contains(all, part) {
					t.Errorf("docs/install.md: %q of %q is no message of a program", part, found[1])
				}
			}
		}
	}
	if len(onPage) < 20 {
		t.Fatalf("found only %d errors in docs/install.md", len(onPage))
	}
	return onPage
}

func keys(set map[string]bool) (all []string) {
	for key := range set {
		all = append(all, key)
	}
	return all
}

func kernelErrors() (all []string) {
	for number := range syscall.Errno(lastError + 1) {
		all = append(all, number.Error())
	}
	return all
}
