package layers

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// mapPage tells a newcomer what to read in which order.
const mapPage = "../../docs/design/map.md"

// What the page promises of the reading core, and how far a figure may be off.
const (
	mostToRead = 15_000
	tolerance  = 0.1
)

var (
	// step is a row of the reading core: its number, the files or folders, what they are, and their lines.
	step   = regexp.MustCompile(`(?m)^\| ([0-9]+) \| (.+?) \| .+ \| ([0-9,]+) \|$`)
	inCode = regexp.MustCompile("`([^`]+)`")
)

// TestMap holds docs/design/map.md against the code: every folder of internal/ is in it, and the files of the reading core exist and have
// about as many lines as it says.
func TestMap(t *testing.T) {
	page, err := os.ReadFile(mapPage)
	errtest.Must(t, err)
	entries, err := os.ReadDir("../../internal")
	errtest.Must(t, err)
	for _, e := range entries {
		if e.IsDir() && !strings.Contains(string(page), "`"+e.Name()+"`") {
			t.Errorf("%s does not say what internal/%s is", mapPage, e.Name())
		}
	}
	steps := step.FindAllStringSubmatch(string(page), -1)
	if len(steps) < 5 {
		t.Fatalf("%s: found %d steps of the reading core", mapPage, len(steps))
	}
	sum := 0
	for _, s := range steps {
		stated, err := strconv.Atoi(strings.ReplaceAll(s[3], ",", ""))
		errtest.Must(t, err)
		lines := 0
		for _, path := range inCode.FindAllStringSubmatch(s[2], -1) {
			lines += linesOf(t, filepath.Join("../../internal", path[1]))
		}
		if off := float64(lines-stated) / float64(stated); max(off, -off) > tolerance {
			t.Errorf("%s: step %s has %d lines, not %d", mapPage, s[1], lines, stated)
		}
		sum += lines
	}
	if sum > mostToRead {
		t.Errorf("%s: the reading core has %d lines, more than %d", mapPage, sum, mostToRead)
	}
	t.Logf("the reading core has %d lines", sum)
}

// linesOf counts the lines of a file, or of the files of a package without its tests.
func linesOf(t *testing.T, path string) (lines int) {
	t.Helper()
	files := []string{path}
	if filepath.Ext(path) != ".go" {
		var err error
		if files, err = filepath.Glob(filepath.Join(path, "*.go")); err != nil || len(files) == 0 {
			t.Fatalf("no Go files in %s: %v", path, err)
		}
		files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		errtest.Must(t, err)
		lines += bytes.Count(text, []byte("\n"))
	}
	return lines
}
