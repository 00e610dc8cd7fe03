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
	// joint is what a program fills in, and where one text goes on after another.
	joint = regexp.MustCompile(`\.\.\.|[0-9]+|: | \(`)
)

// lastError is the highest number of an error of Linux, EHWPOISON.
const lastError = 133

// shortest is the length of a text that says something by itself.
const shortest = 6

// installErrors takes the messages of the section Errors of docs/install.md. Several may be in one row. A message may go on with the
// kernel's words: so each part of it must be in something that the programs say, or the kernel.
func installErrors(t *testing.T, said map[string]bool) (onPage map[string]bool) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Errors\n")
	all := strings.Join(append(keys(said), kernelErrors()...), "\n")
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
					t.Errorf("docs/install.md: nobody says %q of %q", part, found[1])
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
