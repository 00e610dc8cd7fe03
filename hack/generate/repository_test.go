package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/config"
)

const repository = "../.."

// pages returns the text of all Markdown pages by path. What hack/ has are parts of pages of docs/.
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
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 8 {
		t.Fatalf("found only %d pages", len(all))
	}
	return all
}

var link = regexp.MustCompile(`\]\(([^)#: ]+)(#[^)]*)?\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	for page, text := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target := filepath.Join(filepath.Dir(page), match[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, match[1])
			}
		}
	}
}

// A key, argument or annotation that the plugins read and no page names cannot be found by the people it is for.
func TestPluginInputsAreDocumented(t *testing.T) {
	all := pages(t)
	documented := all[filepath.Join(repository, "docs/cni.md")] + all[filepath.Join(repository, "docs/ipam.md")]
	in, err := readPluginInputs(repository)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range slices.Concat(in.options, in.arguments, in.annotations) {
		names = append(names, i.name)
	}
	for _, v := range config.Describe(config.RawPlugin{}) {
		names = append(names, v.Name)
	}
	if len(names) < 80 {
		t.Fatalf("found only %d names", len(names))
	}
	for _, name := range names {
		if !strings.Contains(documented, "\n| `"+name+"` |") {
			t.Errorf("%s is in no table of docs/cni.md or docs/ipam.md", name)
		}
	}
}

// The README's targets must exist.
func TestMakeTargetsInPagesExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	target := regexp.MustCompile("`make ([a-z][a-z/-]*)")
	for page, text := range pages(t) {
		for _, match := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(makefile), "\n"+match[1]+":") {
				t.Errorf("%s names `make %s`, which is not in the Makefile", page, match[1])
			}
		}
	}
}
