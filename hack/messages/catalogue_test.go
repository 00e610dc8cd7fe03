package messages

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const root = "../.."

// informational are reasons of Events and conditions that report no problem.
var informational = []string{"PeerUp", "RouteReflection", "CalicoIsUp", "OK", "Terminating"}

var (
	// verb is what fmt fills in, and joint where a message goes on with another text: the kernel's, or that of a wrapped
	// error.
	verb  = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)
	joint = regexp.MustCompile(`\.\.\.|[0-9]+|: | \(`)
)

const (
	// lastError is the highest number of an error of Linux, EHWPOISON.
	lastError = 133
	// shortest is the length of a text that is not in any source by chance.
	shortest = 6
)

// TestCatalogueIsOfTheCode: each part of each message stands in a constant of the code, in the chart, or is an error of
// the kernel's. A sentence of the code may change wherever no message of the catalogue quotes it.
func TestCatalogueIsOfTheCode(t *testing.T) {
	s := readSources(t)
	texts := slices.Collect(maps.Keys(s.texts))
	for number := range syscall.Errno(lastError + 1) {
		texts = append(texts, number.Error())
	}
	all := strings.Join(strings.Fields(verb.ReplaceAllString(strings.Join(texts, "\n"), "...")), " ")
	seen := map[string]bool{}
	for table, entries := range load(t) {
		for _, e := range entries {
			if e.Help == "" {
				t.Errorf("%s, table %s: %q has no help", File, table, e.Message)
			}
			for _, text := range e.Texts() {
				if seen[text] {
					t.Errorf("%s, table %s: %q is there twice", File, table, text)
				}
				seen[text] = true
				for _, part := range unknown(text, all) {
					t.Errorf("%s, table %s: %q of %q is neither in the code nor in the chart", File, table, part, text)
				}
			}
		}
	}
}

// unknown returns the parts of a message's text that are not in any of the texts of code and chart.
func unknown(text, all string) (parts []string) {
	for _, part := range joint.Split(text, -1) {
		if part = strings.Trim(part, ` :="`); len(part) >= shortest && !strings.Contains(all, part) {
			parts = append(parts, part)
		}
	}
	return parts
}

// TestCatalogueIsComplete: each Event, alert, refusal of a policy and error of the chart has an entry.
func TestCatalogueIsComplete(t *testing.T) {
	listed := map[string]bool{}
	for _, entries := range load(t) {
		for _, e := range entries {
			for _, text := range e.Texts() {
				listed[text] = true
			}
		}
	}
	for _, m := range readSources(t).messages {
		text := strings.Join(strings.Fields(verb.ReplaceAllString(m.text, "...")), " ")
		if !listed[text] && !slices.Contains(informational, text) {
			t.Errorf("%s: %s %q is not in %s: add it with its cause and remedy", m.at, m.class, text, File)
		}
	}
}

func load(t *testing.T) map[string][]Entry {
	t.Helper()
	all, err := Load(root)
	errtest.Must(t, err)
	if len(all) < 5 {
		t.Fatalf("found only %d tables", len(all))
	}
	return all
}
