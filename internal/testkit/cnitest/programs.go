package cnitest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// Programs is a directory of programs, built once per test binary with the flags of a release.
type Programs struct {
	packages []string
	links    map[string]string // by the name of the link
	stepping bool
	replaced [3]string // see Replacing
	sources  string    // sources of a steppable clock, or of Replacing; empty: none
	once     sync.Once
	dir      string
	err      error
}

// NewPrograms returns programs that are built when a test first needs them. packages are arguments of go build at the
// root of the repository.
func NewPrograms(packages ...string) *Programs {
	return &Programs{packages: packages, links: map[string]string{}}
}

// Link adds a symbolic link to a program.
func (p *Programs) Link(program, name string) *Programs {
	p.links[name] = program
	return p
}

// Dir returns the directory, in which each program has the name of its package.
func (p *Programs) Dir(t testing.TB) string {
	t.Helper()
	needtest.More(t, "the plugins, built")
	p.once.Do(func() { p.err = p.build() })
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.dir
}

// Remove removes the directory, if it exists. Call it at the end of TestMain.
func (p *Programs) Remove() {
	for _, dir := range []string{p.dir, p.sources} {
		if dir != "" {
			os.RemoveAll(dir)
		}
	}
}

// Replacing makes the build replace one text of a source file by another, such as the value of a constant for which no
// test can wait. The file's path begins at the root of the repository.
func (p *Programs) Replacing(file, text, by string) *Programs {
	p.replaced = [3]string{file, text, by}
	return p
}

// flags returns the flags of go build.
func (p *Programs) flags() ([]string, error) {
	if !p.stepping && p.replaced[0] == "" {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "tortie-sources-")
	if err != nil {
		return nil, err
	}
	p.sources = dir
	write := overlay
	if !p.stepping {
		write = p.replace
	}
	list, err := write(dir)
	return []string{"-overlay=" + list}, err
}

// replace writes the files for go build -overlay into a directory, and returns the overlay file.
func (p *Programs) replace(dir string) (string, error) {
	path := filepath.Join(labtest.Root(), p.replaced[0])
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if strings.Count(string(text), p.replaced[1]) != 1 {
		return "", fmt.Errorf("%s does not have %q once", path, p.replaced[1])
	}
	return writeOverlay(dir, map[string]string{path: strings.Replace(string(text), p.replaced[1], p.replaced[2], 1)})
}

func (p *Programs) build() (err error) {
	if p.dir, err = os.MkdirTemp("", "tortie-plugins-"); err != nil {
		return err
	}
	flags, err := p.flags()
	if err != nil {
		return err
	}
	build := exec.Command("go", slices.Concat([]string{"build"}, flags, []string{"-o", p.dir + "/"}, p.packages)...)
	build.Dir = labtest.Root()
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(p.packages, ", "), err, out)
	}
	for name, program := range p.links {
		if err := os.Symlink(program, filepath.Join(p.dir, name)); err != nil {
			return err
		}
	}
	return nil
}
