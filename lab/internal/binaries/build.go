package binaries

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// progressEvery is how often a build that goes on says how far it is.
const progressEvery = 15 * time.Second

var kubernetesVersion = regexp.MustCompile(`(?m)^\s*(?:require\s+)?k8s\.io/kubernetes (v1\.([0-9]+)\.[0-9]+)$`)

// flags are those of a build: static, without paths of this machine.
func (c *Cache) flags(t Target) ([]string, error) {
	ld, err := "-s -w", error(nil)
	if t.Module == "" {
		ld, err = c.stamps(ld)
	}
	tags := strings.Join(append([]string{"osusergo", "netgo"}, t.Tags...), ",")
	return []string{"-trimpath", "-buildvcs=false", "-tags", tags, "-ldflags", ld}, err
}

// stamps adds Kubernetes' release to the linker's flags: without it a server calls itself v0.0.0-master in /version, and Helm's
// kubeVersion checks fail.
func (c *Cache) stamps(ld string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(c.Module, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read the lab's go.mod: %w", err)
	}
	m := kubernetesVersion.FindSubmatch(mod)
	if m == nil {
		return "", fmt.Errorf("%s/go.mod requires no k8s.io/kubernetes v1.x.y", c.Module)
	}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		ld += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s -X %[1]s.gitTreeState=clean", pkg, m[1], m[2])
	}
	return ld, nil
}

func (c *Cache) build(ctx context.Context, t Target, path string) error {
	lock, err := c.lock(ctx, t.Name)
	if err != nil {
		return fmt.Errorf("lock the cache %s: %w", c.Dir, err)
	}
	defer lock.Close()
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	// Whoever holds the lock is the only builder: what lies here is of one that was killed.
	if err := removeGlob(filepath.Join(c.Dir, "building-"+t.Name+"-*")); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(c.Dir, "building-"+t.Name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := c.compile(ctx, t, tmp); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Dir(path)); err != nil {
		return fmt.Errorf("put the program into the cache: %w", err)
	}
	return c.prune(t)
}

// compile builds into a directory: each program under the name of its package's directory.
func (c *Cache) compile(ctx context.Context, t Target, dir string) error {
	flags, err := c.flags(t)
	if err != nil {
		return err
	}
	args := append([]string{"build", "-v"}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", dir+"/", t.Package)...)
	cmd.Dir = filepath.Join(c.Module, t.Module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run go (is it on PATH?): %w", err)
	}
	p := &progress{name: t.Name, out: c.Log, start: start}
	errLines := p.follow(stderr)
	if err := cmd.Wait(); err != nil {
		return errors.Join(err, errors.New(errLines))
	}
	st, err := os.Stat(filepath.Join(dir, t.Name))
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Log, "%s: built in %.0f s (%d MB)\n", t.Name, time.Since(start).Seconds(), st.Size()>>20)
	return nil
}

// progress turns what `go build -v` prints, a line for each package, into a line now and then.
type progress struct {
	name     string
	out      io.Writer
	start    time.Time
	packages atomic.Int64
}

var packageLine = regexp.MustCompile(`^[a-zA-Z0-9_.~/-]+$`)

// follow reads to the end and returns the lines that are not progress: the compiler's errors.
func (p *progress) follow(r io.Reader) string {
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() { p.tick(done) })
	var rest []string
	s := bufio.NewScanner(r)
	for s.Scan() {
		switch line := s.Text(); {
		case packageLine.MatchString(line):
			p.packages.Add(1)
		case strings.HasPrefix(line, "go: downloading"):
		default:
			rest = append(rest, line)
		}
	}
	close(done)
	wg.Wait()
	return strings.Join(rest, "\n")
}

func (p *progress) tick(done <-chan struct{}) {
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	fmt.Fprintf(p.out, "%s: building\n", p.name)
	for {
		select {
		case <-done:
			return
		case <-t.C:
			fmt.Fprintf(p.out, "%s: %d packages compiled, %.0f s (Kubernetes has some 1500, containerd 1000; they are kept)\n", p.name, p.packages.Load(), time.Since(p.start).Seconds())
		}
	}
}
