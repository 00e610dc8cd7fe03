package messages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// entry is a message of the page: the first cell of a row.
type entry struct {
	line int
	text string
}

var firstCell = regexp.MustCompile("^\\| `(.+?)` \\|")

// readPage takes the messages of docs/troubleshooting.md. Every row must have a second cell: the cause, and what to do.
func readPage(t *testing.T) (entries []entry) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(text), "\n") {
		found := firstCell.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		cells := strings.Split(strings.ReplaceAll(line, `\|`, ""), " | ")
		for _, cell := range cells {
			if strings.Trim(cell, "| ") == "" {
				t.Errorf("docs/troubleshooting.md:%d: an empty cell", i+1)
			}
		}
		if len(cells) != 2 {
			t.Errorf("docs/troubleshooting.md:%d: %d cells, want the message, and its cause and remedy", i+1, len(cells))
		}
		entries = append(entries, entry{i + 1, strings.ReplaceAll(found[1], `\|`, "|")})
	}
	return entries
}

var verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)

// shape is a format as the page writes it: what is filled in is "...".
func shape(format string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(verb.ReplaceAllString(format, "...")), " "), `"..."`, "...")
}

// Whoever searches the page for what a program has said finds it, and finds nothing that no program says.
func TestPageSaysWhatProgramsSay(t *testing.T) {
	s, entries := readSources(t), readPage(t)
	said := map[string]bool{}
	for text := range s.texts {
		said[shape(text)] = true
	}
	onPage := installErrors(t, said)
	for _, e := range entries {
		if onPage[e.text] {
			t.Errorf("docs/troubleshooting.md:%d: %q is there twice", e.line, e.text)
		}
		onPage[e.text] = true
		if !said[e.text] {
			t.Errorf("docs/troubleshooting.md:%d: no program says %q: it has changed, or is a part of a longer text", e.line, e.text)
		}
	}
	needed := map[string]bool{}
	for _, m := range s.messages {
		text := shape(m.text)
		reason, isElsewhere := elsewhere[text]
		switch {
		case needed[m.class+text]:
		case onPage[text] && isElsewhere:
			t.Errorf("%q is on the page, and in the list of those that are not", text)
		case !onPage[text] && reason == "":
			t.Errorf("%s: %s %q is not in docs/troubleshooting.md: add it with cause and remedy, or say in elsewhere why it need not be there", m.at, m.class, text)
		}
		needed[m.class+text], needed[text] = true, true
	}
	for text := range elsewhere {
		if !needed[text] {
			t.Errorf("%q is in the list of those that are not on the page, and no program says it", text)
		}
	}
	t.Logf("%d messages on the page, of %d texts in the programs; %d are left out", len(entries), len(said), len(elsewhere))
}
