package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/tortie-net/tortie/hack/messages"
)

// section finds a generated part of a page: <!-- generated: NAME --> ... <!-- end -->.
var section = regexp.MustCompile(`(?s)(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)`)

// docs returns the pages of docs/ with their generated parts made anew.
func docs(o options) (files, error) {
	parts, err := sections(o.root)
	if err != nil {
		return nil, err
	}
	pages, err := filepath.Glob(filepath.Join(o.root, "docs", "*.md"))
	if err != nil {
		return nil, fmt.Errorf("listing docs: %w", err)
	}
	out, used := files{}, map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, fmt.Errorf("reading page: %w", err)
		}
		if err := checkNames(page, string(text), parts, used); err != nil {
			return nil, err
		}
		out["docs/"+filepath.Base(page)] = section.ReplaceAllFunc(text, func(match []byte) []byte {
			groups := section.FindSubmatch(match)
			return []byte(string(groups[1]) + parts[string(groups[2])] + string(groups[3]))
		})
	}
	for name := range parts {
		if !used[name] {
			return nil, fmt.Errorf("no page in docs/ has the section <!-- generated: %s -->", name)
		}
	}
	return out, nil
}

// checkNames marks the sections of a page as used and rejects unknown ones, which would never be updated.
func checkNames(page, text string, parts map[string]string, used map[string]bool) error {
	for _, groups := range section.FindAllStringSubmatch(text, -1) {
		name := groups[2]
		if _, ok := parts[name]; !ok {
			return fmt.Errorf("%s has an unknown section %q", page, name)
		}
		used[name] = true
	}
	if opened, closed := strings.Count(text, "<!-- generated:"), len(section.FindAllString(text, -1)); opened != closed {
		return fmt.Errorf("%s has %d sections that begin and %d that are whole", page, opened, closed)
	}
	return nil
}

// sections returns the generated parts by name: the lists of the catalogue of messages.
func sections(root string) (map[string]string, error) {
	catalogue, err := messages.Load(root)
	if err != nil {
		return nil, err
	}
	parts := map[string]string{}
	for name, entries := range catalogue {
		for _, e := range entries {
			parts["messages-"+name] += "- `" + strings.Join(e.Texts(), "`, `") + "`: " + e.Help + "\n"
		}
	}
	return parts, nil
}
