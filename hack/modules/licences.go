package modules

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Licences holds the licence texts of a module, by path below it, and the SPDX expression of its licences.
type Licences struct {
	Texts      map[string][]byte
	Expression string
}

// text matches files that licences require to be redistributed.
var text = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|notice|patents)([._-].*)?$`)

// code matches source files, which are no licence texts.
var code = regexp.MustCompile(`\.(go|sh|tmpl|header|tpl)$`)

// Licences reads the licences of a module. A module without any is an error: it cannot be redistributed.
func (c Cache) Licences(m Module) (Licences, error) {
	dir, err := c.dir(m)
	if err != nil {
		return Licences{}, fmt.Errorf("module %s %s: %w", m.Path, m.Version, err)
	}
	read := readBelow
	if m.Path == Standard {
		read = readTop // the rest of Go is not linked
	}
	texts, err := read(dir)
	if err != nil {
		return Licences{}, fmt.Errorf("licences of %s %s: %w (go mod download)", m.Path, m.Version, err)
	}
	expression := identify(texts)
	if expression == "" {
		return Licences{}, fmt.Errorf("module %s %s has no licence that is known, in %s: see whether it may be linked", m.Path, m.Version, dir)
	}
	return Licences{Texts: texts, Expression: expression}, nil
}

// readBelow reads the licences of the whole module: copies of other projects' code have their own beside them.
func readBelow(dir string) (map[string][]byte, error) {
	texts := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{"testdata", "docs", "examples"}, entry.Name()) {
			return filepath.SkipDir
		}
		if !entry.Type().IsRegular() || !text.MatchString(entry.Name()) || code.MatchString(entry.Name()) {
			return nil
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		texts[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	})
	return texts, err
}

func readTop(dir string) (map[string][]byte, error) {
	texts := map[string][]byte{}
	for _, name := range []string{"LICENSE", "PATENTS"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		texts[name] = content
	}
	return texts, nil
}

// known are sentences that identify a licence, in lower case and without the comma before a version.
var known = map[string]string{
	"Apache-2.0": "apache license version 2.0",
	"ISC":        "this software for any purpose with or without fee is hereby granted",
	"MIT":        "permission is hereby granted, free of charge, to any person obtaining a copy",
	"MPL-2.0":    "mozilla public license version 2.0",
}

// identify returns the licences of a module's top directory as an SPDX expression; licences of subdirectories are only
// in the texts.
func identify(texts map[string][]byte) string {
	var found []string
	for name, content := range texts {
		if !strings.Contains(name, "/") {
			found = append(found, identifyText(string(content))...)
		}
	}
	slices.Sort(found)
	return strings.Join(slices.Compact(found), " AND ")
}

func identifyText(content string) (found []string) {
	plain := strings.ReplaceAll(strings.Join(strings.Fields(strings.ToLower(content)), " "), "license, version", "license version")
	for id, sentence := range known {
		if strings.Contains(plain, sentence) {
			found = append(found, id)
		}
	}
	if strings.Contains(plain, "redistribution and use in source and binary forms") {
		found = append(found, bsd(plain))
	}
	return found
}

// bsd distinguishes BSD-2-Clause and BSD-3-Clause by the clause on endorsement.
func bsd(plain string) string {
	if strings.Contains(plain, "endorse or promote") {
		return "BSD-3-Clause"
	}
	return "BSD-2-Clause"
}
