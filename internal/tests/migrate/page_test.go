package migrate

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// command is a command of a page, and its documented output.
type command struct {
	line int
	text string
	want []string
}

// page is a document with its commands by heading.
type page struct {
	path     string
	headings []string
	commands map[string][]command
	values   map[string]string // YAML blocks, by the name in the comment before
}

var valuesOf = regexp.MustCompile(`^<!-- values: (\S+) -->$`)

// readPage parses a document of docs/.
func readPage(t *testing.T, name string) *page {
	t.Helper()
	p := &page{path: filepath.Join(labtest.Root(), "docs", name), commands: map[string][]command{}, values: map[string]string{}}
	text, err := os.ReadFile(p.path)
	errtest.Must(t, err)
	heading, fence, values, indent := "", "", "", ""
	for i, line := range strings.Split(string(text), "\n") {
		if at := strings.Index(line, "<!-- values:"); at >= 0 {
			indent = line[:at] // of a list item
		}
		line = strings.TrimPrefix(line, indent)
		switch found := valuesOf.FindStringSubmatch(line); {
		case strings.HasPrefix(line, "```"):
			if fence == "yaml" {
				values = ""
			}
			fence = strings.TrimPrefix(line, "```")
		case fence == "yaml" && values != "":
			p.values[values] += line + "\n"
		case fence == "console":
			p.add(heading, i+1, line)
		case found != nil:
			values = found[1]
		case fence == "" && strings.HasPrefix(line, "#"):
			heading = strings.TrimLeft(line, "# ")
			p.headings = append(p.headings, heading)
		}
	}
	return p
}

func (p *page) add(heading string, number int, line string) {
	if text, ok := strings.CutPrefix(line, "$ "); ok {
		p.commands[heading] = append(p.commands[heading], command{line: number, text: text})
		return
	}
	all := p.commands[heading]
	last := &all[len(all)-1]
	last.want = append(last.want, line)
}

// shell executes a page's commands, and keeps the variables that they set.
type shell struct {
	page *page
	dir  string // working directory, with programs that replace the reader's
	env  map[string]string
}

// newShell returns a shell in which kubectl and helm use a lab. The image of its nodes is added to the page's values.
func newShell(t *testing.T, p *page, l *labtest.Lab) *shell {
	t.Helper()
	s := &shell{page: p, dir: t.TempDir(), env: map[string]string{}}
	s.write(t, "kubectl", "#!/bin/sh\nexec "+l.Command("kubectl")+" \"$@\"\n")
	s.write(t, "helm", fmt.Sprintf("#!/bin/sh\ncase $1 in install|upgrade) set -- \"$@\" --set %s;; esac\nexec %s \"$@\"\n",
		labtest.SetImage(labtest.ImageTag), l.Command("helm")))
	errtest.Must(t, os.Symlink(filepath.Join(labtest.Root(), "charts"), filepath.Join(s.dir, "charts")))
	for name, text := range p.values {
		s.write(t, name+".yaml", text)
	}
	return s
}

func (s *shell) write(t *testing.T, name, text string) {
	t.Helper()
	errtest.Must(t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o700))
}

// follow executes the commands under a heading; instead replaces variables that the page sets.
func (s *shell) follow(t *testing.T, heading string, instead map[string]string) {
	t.Helper()
	if len(s.page.commands[heading]) == 0 {
		t.Fatalf("%s has no commands under %q; it has %q", s.page.path, heading, s.page.headings)
	}
	for _, c := range s.page.commands[heading] {
		s.try(t, c, instead)
	}
}

// looking matches read-only commands: their output may take a while to match.
var (
	looking   = regexp.MustCompile(`^kubectl( -n \S+)? (get|logs|exec \S+ -c \S+ -- node) `)
	assigning = regexp.MustCompile(`^([A-Z]+)=`)
)

func (s *shell) try(t *testing.T, c command, instead map[string]string) {
	t.Helper()
	start := time.Now()
	meshtest.Within(t, 2*meshtest.Patience, func() error {
		out, err := s.run(t, c.text, instead)
		if err == nil {
			err = matches(strings.Split(labtest.InGroupText(t, strings.Join(c.want, "\n")), "\n"), out)
		}
		if err == nil {
			return nil
		}
		err = fmt.Errorf("%s:%d: %s: %w", s.page.path, c.line, c.text, err)
		if !looking.MatchString(c.text) {
			t.Fatal(err)
		}
		return err
	})
	t.Logf("%5.1f s  %s", time.Since(start).Seconds(), c.text)
}

// run executes a command and keeps a variable that it sets.
func (s *shell) run(t *testing.T, text string, instead map[string]string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	script := "set -o pipefail; " + text
	var names []string
	if assigning.MatchString(text) && !strings.Contains(text, "; ") {
		for _, word := range strings.Fields(text) {
			if name := assigning.FindStringSubmatch(word); name != nil {
				names = append(names, name[1])
				script += fmt.Sprintf("\nprintf '%%s\\n' \"$%s\"", name[1])
			}
		}
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"))
	for name, value := range s.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if len(names) == 0 {
		return string(out), nil
	}
	for i, value := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		s.env[names[i]] = value
		if other, ok := instead[names[i]]; ok {
			s.env[names[i]] = other
		}
	}
	return "", nil
}

// matches compares an output with the page's: ... matches any text, or any lines on a line of its own. White space
// between words is ignored.
func matches(want []string, got string) error {
	var b strings.Builder
	b.WriteString(`(?s)^\s*`)
	for _, line := range want {
		if strings.TrimSpace(line) == "..." {
			b.WriteString(`.*`)
			continue
		}
		for i, part := range strings.Split(strings.TrimSpace(line), "...") {
			if i > 0 {
				b.WriteString(`[^\n]*?`)
			}
			words := strings.Fields(part)
			for i := range words {
				words[i] = regexp.QuoteMeta(words[i])
			}
			b.WriteString(strings.Join(words, `\s+`))
			b.WriteString(`\s*`)
		}
	}
	b.WriteString(`$`)
	if !regexp.MustCompile(b.String()).MatchString(got) {
		return fmt.Errorf("documented output:\n%s\nactual output:\n%s", strings.Join(want, "\n"), got)
	}
	return nil
}

// The comparison finds differences.
func TestMatches(t *testing.T) {
	for _, c := range []struct {
		want, got string
		ok        bool
	}{
		{"true", "true\n", true},
		{"true", "false\n", false},
		{"", "", true},
		{"", "something\n", false},
		{"NAME AGE\npool ...", "NAME      AGE\npool      12s\n", true},
		{"NAME AGE\npool ...", "NAME      AGE\nother     12s\n", false},
		{"NAME AGE\npool ...", "NAME      AGE\npool 1s\nother     12s\n", false},
		{"Node ..., ready\n...\nRoutes 3", "Node       n1, ready\nA\nB\nRoutes  3\n", true},
		{"Node ..., ready\n...\nRoutes 3", "Node       n1, not\nA, ready\nRoutes  3\n", false},
		{"... 0 problems, ...", "Node n: 17 checks in 2 s: 0 problems, 1\n", true},
		{"... 0 problems, ...", "Node n: 17 checks in 2 s: 2 problems, 1\n", false},
	} {
		if err := matches(strings.Split(c.want, "\n"), c.got); (err == nil) != c.ok {
			t.Errorf("%q and %q: %v", c.want, c.got, err)
		}
	}
}
