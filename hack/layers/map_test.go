package layers

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// mapPage tells a newcomer what to read in which order. The README has its two sums.
const (
	mapPage = "../../docs/design/map.md"
	readme  = "../../README.md"
)

// What the page promises of the reading core, and how far a figure may be off.
const (
	mostToRead = 63_000
	tolerance  = 0.1
)

var (
	// step is a row of the reading core: its number, the files or folders, what they are, and their words.
	step   = regexp.MustCompile(`(?m)^\| ([0-9]+) \| (.+?) \| .+ \| ([0-9,]+) \|$`)
	inCode = regexp.MustCompile("`([^`]+)`")
	// sums are the words of the reading core and of the rest of the product, in both pages.
	sums = regexp.MustCompile(`(?s)([0-9,]+) words\s+explains?\s+a\s+packet's\s+whole\s+way.*?the\s+other\s+([0-9,]+)\s`)
)

// TestMap holds docs/design/map.md and the README against the code: every folder of internal/ is in the map, the files
// of the reading core exist and have about the stated words, and so have core and rest as a whole.
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
		words := 0
		for _, path := range inCode.FindAllStringSubmatch(s[2], -1) {
			words += wordsOf(t, filepath.Join("../../internal", path[1]))
		}
		compare(t, mapPage+", step "+s[1], s[3], words)
		sum += words
	}
	if sum > mostToRead {
		t.Errorf("%s: the reading core has %d words, more than %d", mapPage, sum, mostToRead)
	}
	rest := wordsOfProduct(t) - sum
	t.Logf("the reading core has %d words, the rest of the product %d", sum, rest)
	for _, path := range []string{mapPage, readme} {
		text, err := os.ReadFile(path)
		errtest.Must(t, err)
		stated := sums.FindStringSubmatch(strings.ToLower(string(text)))
		if stated == nil {
			t.Fatalf("%s does not have the words of the reading core and of the rest", path)
		}
		compare(t, path+", reading core", stated[1], sum)
		compare(t, path+", the rest", stated[2], rest)
	}
}

// compare fails if a stated figure is off by more than the tolerance.
func compare(t *testing.T, what, stated string, words int) {
	t.Helper()
	n, err := strconv.Atoi(strings.ReplaceAll(stated, ",", ""))
	errtest.Must(t, err)
	if off := float64(words-n) / float64(n); max(off, -off) > tolerance {
		t.Errorf("%s: %d words, not %s", what, words, stated)
	}
}

// wordsOfProduct counts the words of cmd and internal without tests and their helpers.
func wordsOfProduct(t *testing.T) (words int) {
	t.Helper()
	for _, root := range []string{"../../cmd", "../../internal"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (entry.Name() == "testkit" || entry.Name() == "tests"):
				return filepath.SkipDir
			case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			text, err := os.ReadFile(path)
			words += countWords(text)
			return err
		})
		errtest.Must(t, err)
	}
	return words
}

// wordsOf counts the words of a file, or of the files of a package without its tests.
func wordsOf(t *testing.T, path string) (words int) {
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
		words += countWords(text)
	}
	return words
}

// marker is a line that hack/generate reads, such as a rule of a definition: its words are for the API server.
var marker = regexp.MustCompile(`(?m)^\s*// \+[a-z].*$`)

// countWords counts what has a letter or a digit, outside of markers. Unlike lines it stays the same when lines are
// wrapped.
func countWords(text []byte) (words int) {
	for w := range bytes.FieldsSeq(marker.ReplaceAll(text, nil)) {
		if bytes.ContainsFunc(w, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			words++
		}
	}
	return words
}
