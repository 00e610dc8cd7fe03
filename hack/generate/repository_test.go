package main

import (
	"encoding/csv"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/plugin"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const repository = "../.."

// pages returns the text of all Markdown pages by path. Files of hack/ are parts of pages of docs/.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(repository, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (slices.Contains([]string{".git", "dist", "testdata", "hack"}, entry.Name())) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			text, err := os.ReadFile(path)
			all[path] = string(text)
			return err
		}
		return nil
	})
	errtest.Must(t, err)
	if len(all) < 8 {
		t.Fatalf("found only %d pages", len(all))
	}
	return all
}

// prose returns a page without fenced code, where # is a comment and brackets are code.
func prose(text string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		} else if !fenced {
			b.WriteString(line)
		}
	}
	return b.String()
}

var (
	heading = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	// unnamed matches the characters that GitHub removes from a heading for its anchor.
	unnamed = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	link    = regexp.MustCompile(`\]\(([^)# ]*)(?:#([^) ]*))?\)`)
)

// anchors returns GitHub's anchors of the headings of a page. A repeated heading gets a number.
func anchors(text string) map[string]bool {
	all, count := map[string]bool{}, map[string]int{}
	for _, match := range heading.FindAllStringSubmatch(prose(text), -1) {
		name := strings.ReplaceAll(unnamed.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")
		if n := count[name]; n > 0 {
			all[fmt.Sprintf("%s-%d", name, n)] = true
		}
		count[name]++
		all[name] = true
	}
	return all
}

// links returns the link targets of a page in the repository: files and anchors.
func links(page, text string) (all [][2]string) {
	for _, match := range link.FindAllStringSubmatch(prose(text), -1) {
		switch {
		case strings.Contains(match[1], ":"): // an external link
		case match[1] == "":
			all = append(all, [2]string{page, match[2]})
		default:
			all = append(all, [2]string{filepath.Join(filepath.Dir(page), match[1]), match[2]})
		}
	}
	return all
}

func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, to := range links(page, text) {
			if _, err := os.Stat(to[0]); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, to[0])
			} else if to[1] != "" && !anchors(all[to[0]])[to[1]] {
				t.Errorf("%s links to #%s of %s, which has no such heading", page, to[1], to[0])
			}
		}
	}
}

// TestAnchors checks the anchors against GitHub's.
func TestAnchors(t *testing.T) {
	got := anchors("# What `x` is: a_b-c, \"or\" not?\n```sh\n# no heading\n```\n## Again\ntext\n## Again\n")
	want := map[string]bool{"what-x-is-a_b-c-or-not": true, "again": true, "again-1": true}
	if !maps.Equal(got, want) {
		t.Errorf("anchors %v, want %v", got, want)
	}
}

// Of each kind that the chart defines the page about Calico's manifests says what to write, and the values that it
// names are the chart's.
func TestCalicoManifestsHaveAnInstead(t *testing.T) {
	page := pages(t)[filepath.Join(repository, "docs", "calico-manifests.md")]
	definitions, err := filepath.Glob(filepath.Join(repository, "charts/tortie/definitions/v1/*.yaml"))
	errtest.Must(t, err)
	kind := regexp.MustCompile(`(?m)^    kind: (\w+)$`)
	for _, file := range definitions {
		text, err := os.ReadFile(file)
		errtest.Must(t, err)
		if m := kind.FindSubmatch(text); m == nil || !regexp.MustCompile(`\b`+string(m[1])+`\b`).MatchString(page) {
			t.Errorf("%s: the page has no %q", file, m)
		}
	}
	values, err := os.ReadFile(filepath.Join(repository, "charts/tortie/values.yaml"))
	errtest.Must(t, err)
	_, installation, _ := strings.Cut(page, "| Installation |")
	for row := range strings.Lines(installation) {
		cells := strings.Split(row, "|")
		if len(cells) < 3 || strings.Contains(row, "---") {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z][A-Za-z]+)[.`]").FindAllStringSubmatch(cells[2], -1) {
			if !regexp.MustCompile(`(?m)^ *` + m[1] + `:`).Match(values) {
				t.Errorf("values.yaml has no %s: %s", m[1], row)
			}
		}
	}
}

// Every page is reachable from README.md.
func TestEveryPageIsReachedFromTheReadme(t *testing.T) {
	all := pages(t)
	reached := map[string]bool{}
	next := []string{filepath.Join(repository, "README.md")}
	for len(next) > 0 {
		page := next[0]
		next = next[1:]
		if reached[page] {
			continue
		}
		reached[page] = true
		for _, to := range links(page, all[page]) {
			next = append(next, to[0])
		}
	}
	for page := range all {
		// GitHub finds its own.
		if !reached[page] && filepath.Dir(page) != filepath.Join(repository, ".github") {
			t.Errorf("%s is not reachable from README.md", page)
		}
	}
}

// The list of settings is up to date, and has every key, argument, annotation and variable of the plugins.
func TestSettingsAreDocumented(t *testing.T) {
	want, err := commaSeparated(settings())
	errtest.Must(t, err)
	have, err := os.ReadFile(filepath.Join(repository, settingsPath))
	errtest.Must(t, err)
	if string(have) != string(want) {
		t.Errorf("%s is not up to date: make generate writes it", settingsPath)
	}
	var names []string
	for _, o := range plugin.Options() {
		names = append(names, o.Key)
	}
	for _, a := range plugin.Arguments() {
		names = append(names, a.Key)
	}
	for _, a := range plugin.Annotations() {
		names = append(names, a.Key)
	}
	for _, v := range config.Describe(config.PluginVariables{}) {
		names = append(names, v.Name)
	}
	if len(names) < 80 {
		t.Fatalf("found only %d names", len(names))
	}
	for _, name := range names {
		if !strings.Contains(string(have), ","+name+",") {
			t.Errorf("%s is not in %s", name, settingsPath)
		}
	}
}

// Commands in pages exist: targets of make, and commands of the lab.
func TestCommandsInPagesExist(t *testing.T) {
	for _, c := range []struct {
		source    string
		typed     *regexp.Regexp // matches a name in a page
		defined   string         // how the source defines the name
		wantNames int            // minimum number in pages
	}{
		{"Makefile", regexp.MustCompile("(?m)(?:`|^ {4})make ([a-z][a-z0-9/-]*)"), "\n%s:", 20},
		{"lab/cmd/lab/main.go", regexp.MustCompile("(?m)(?:`|\\(|^ {4}|/)bin/lab ([a-z]+)"), "\t\t{%q, ", 6},
	} {
		source, err := os.ReadFile(filepath.Join(repository, c.source))
		errtest.Must(t, err)
		if c.source == "Makefile" {
			suites, err := os.ReadFile(filepath.Join(repository, "hack/suites.mk"))
			errtest.Must(t, err)
			// A suite has a target by its pattern.
			source = append(source, regexp.MustCompile(`(?m)^([a-z0-9-]+)\.what `).ReplaceAll(suites, []byte("suite-$1:"))...)
		}
		found := 0
		for page, text := range pages(t) {
			for _, match := range c.typed.FindAllStringSubmatch(text, -1) {
				found++
				if !strings.Contains(string(source), fmt.Sprintf(c.defined, match[1])) {
					t.Errorf("%s uses %q, which is not in %s", page, match[0], c.source)
				}
			}
		}
		if found < c.wantNames {
			t.Errorf("found only %d names of %s", found, c.source)
		}
	}
}

var testFunction = regexp.MustCompile(`(?m)^func (Test|Fuzz)\w+`)

// Every attack of docs/defences.csv has an outcome, and names tests that exist.
func TestDefencesNameTests(t *testing.T) {
	file, err := os.Open(filepath.Join(repository, "docs", "defences.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil || len(rows) < 40 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	exists := testFunctions(t)
	for _, row := range rows[1:] {
		if row[0] == "" || row[1] == "" || row[2] == "" {
			t.Errorf("%q lacks a value", row)
		}
		for _, name := range strings.Split(row[3], ", ") {
			if !exists[name] {
				t.Errorf("attack %q: no test is called %s", row[1], name)
			}
		}
	}
}

// testFunctions returns the names of the product's tests.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(repository, "internal"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range testFunction.FindAllString(string(text), -1) {
			all[strings.TrimPrefix(found, "func ")] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
