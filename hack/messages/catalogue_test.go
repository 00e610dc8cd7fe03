package messages

import (
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const root = "../.."

// informational are reasons of Events and conditions that report no problem.
var informational = []string{"PeerUp", "RouteReflection", "CalicoIsUp", "OK", "Terminating"}

// named are the tables of names; a name is an interface, and the sentences of the other tables may change.
var named = []string{"events", "other-events", "alerts", "fence"}

// TestNames: each Event, alert and policy that refuses requests is in the catalogue, and each of the catalogue exists.
func TestNames(t *testing.T) {
	s, listed := readSources(t), map[string]bool{}
	for table, entries := range load(t) {
		for _, e := range entries {
			if e.Help == "" {
				t.Errorf("%s, table %s: %q has no help", File, table, e.Message)
			}
			for _, text := range e.Texts() {
				if listed[text] {
					t.Errorf("%s, table %s: %q is there twice", File, table, text)
				}
				listed[text] = true
			}
		}
	}
	for _, m := range s.names {
		s.words[m.name] = true
		if !listed[m.name] && !slices.Contains(informational, m.name) {
			t.Errorf("%s: %s %q is not in %s: add it with its cause and remedy", m.at, m.class, m.name, File)
		}
	}
	for table, entries := range load(t) {
		if !slices.Contains(named, table) {
			continue
		}
		for _, e := range entries {
			for _, name := range e.Texts() {
				if fence := strings.HasPrefix(name, "tortie fences"); !s.words[name] && !fence {
					t.Errorf("%s, table %s: %q is neither in the code nor in the chart", File, table, name)
				}
			}
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
