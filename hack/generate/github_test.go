package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// githubFiles returns the files of .github that match a pattern, by absolute path.
func githubFiles(t *testing.T, pattern string) []string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(repository, ".github"))
	errtest.Must(t, err)
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	errtest.Must(t, err)
	if len(files) == 0 {
		t.Fatalf("%s has no %s", dir, pattern)
	}
	return files
}

// read parses a YAML file.
func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	errtest.Must(t, err)
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestWorkflowsHaveNoMistakes(t *testing.T) {
	out, err := exec.Command("go",
		append([]string{"-C", "../actionlint", "tool", "actionlint", "-no-color"}, githubFiles(t, "workflows/*.yml")...)...).CombinedOutput()
	if err != nil {
		t.Errorf("actionlint: %v\n%s", err, out)
	}
}

// workflow is the part of a workflow that says what runs.
type workflow struct {
	Jobs map[string]struct {
		Strategy struct {
			Matrix struct{ Target []string }
		}
		Container struct{ Image string }
		Steps     []struct{ Uses, Run string }
	}
}

// A workflow does what a developer does by hand: it calls targets of make, with the Go of go.mod. An action is named by
// its commit, as a tag can be moved.
func TestWorkflowsCallMake(t *testing.T) {
	targets := makeTargets(t)
	for _, file := range githubFiles(t, "workflows/*.yml") {
		var w workflow
		read(t, file, &w)
		for name, job := range w.Jobs {
			if want := "golang:" + goRelease(t) + "-"; !strings.HasPrefix(job.Container.Image, want) {
				t.Errorf("%s: jobs.%s.container.image is %q, want %s...", file, name, job.Container.Image, want)
			}
			for i, step := range job.Steps {
				calls := []string{step.Run}
				if strings.Contains(step.Run, "${{ matrix.target }}") {
					calls = nil
					for _, target := range job.Strategy.Matrix.Target {
						calls = append(calls, strings.ReplaceAll(step.Run, "${{ matrix.target }}", target))
					}
				}
				for _, call := range calls {
					target, isMake := strings.CutPrefix(call, "make ")
					if step.Uses == "" && (!isMake || !slices.Contains(targets, target)) {
						t.Errorf("%s: jobs.%s.steps[%d].run is %q: want make and a target of the Makefile", file, name, i, call)
					}
				}
				if step.Uses != "" && !pinned.MatchString(step.Uses) {
					t.Errorf("%s: jobs.%s.steps[%d].uses is %q: want @ and a commit", file, name, i, step.Uses)
				}
			}
		}
	}
}

var (
	pinned     = regexp.MustCompile(`@[0-9a-f]{40}$`)
	targetLine = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	goLine     = regexp.MustCompile(`(?m)^go (\d+\.\d+)`)
)

func makeTargets(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository, "hack", "*.mk")) // what the Makefile includes
	errtest.Must(t, err)
	for _, file := range append(files, filepath.Join(repository, "Makefile")) {
		text, err := os.ReadFile(file)
		errtest.Must(t, err)
		for _, m := range targetLine.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}

// goRelease returns the release of Go that go.mod names, such as 1.26.
func goRelease(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	errtest.Must(t, err)
	m := goLine.FindSubmatch(text)
	if m == nil {
		t.Fatal("go.mod names no release of Go")
	}
	return string(m[1])
}

// GitHub shows no form for a file that it cannot read, and says so to nobody.
func TestIssueForms(t *testing.T) {
	for _, file := range githubFiles(t, "ISSUE_TEMPLATE/*.yml") {
		if filepath.Base(file) == "config.yml" {
			continue // names pages in place of forms
		}
		var form struct {
			Name, Description string
			Body              []struct {
				Type, ID   string
				Attributes struct{ Label, Value string }
			}
		}
		read(t, file, &form)
		if form.Name == "" || form.Description == "" || len(form.Body) == 0 {
			t.Errorf("%s: name, description and body must not be empty", file)
		}
		ids := map[string]bool{}
		for i, field := range form.Body {
			switch field.Type {
			case "markdown":
				if field.Attributes.Value == "" {
					t.Errorf("%s: body[%d].attributes.value is empty", file, i)
				}
			case "textarea", "input":
				if field.Attributes.Label == "" || field.ID == "" || ids[field.ID] {
					t.Errorf("%s: body[%d]: label %q and id %q: want a label, and an id of its own", file, i, field.Attributes.Label, field.ID)
				}
				ids[field.ID] = true
			default:
				t.Errorf("%s: body[%d].type is %q: want markdown, textarea or input", file, i, field.Type)
			}
		}
	}
}
