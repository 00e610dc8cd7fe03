package binaries

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/lab/internal/remedy"
)

// beat is the interval of progress lines.
const beat = 10 * time.Second

// progress reports the work of go commands: downloaded modules and compiled packages.
type progress struct {
	out  io.Writer
	name string
	end  func() // ends the lines; it is idempotent

	mu         sync.Mutex // guards out and the fields below
	start      time.Time  // of the current step
	downloaded int        // modules
	done, all  int        // packages
}

func newProgress(out io.Writer, name string) *progress {
	p := &progress{out: out, name: name, start: time.Now()}
	p.print("building")
	done := make(chan struct{})
	var ticks sync.WaitGroup
	ticks.Go(func() { p.tick(done) })
	p.end = sync.OnceFunc(func() { close(done); ticks.Wait() })
	return p
}

func (p *progress) tick(done <-chan struct{}) {
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case now := <-t.C:
			p.mu.Lock()
			p.print(p.line(now.Sub(p.start)))
			p.mu.Unlock()
		}
	}
}

func (p *progress) print(text string) { fmt.Fprintf(p.out, "%s: %s\n", p.name, text) }

// line returns the progress after a time.
func (p *progress) line(took time.Duration) string {
	took = took.Round(time.Second)
	switch {
	case p.all == 0 && p.downloaded > 0:
		return fmt.Sprintf("%d Go modules downloaded, %v", p.downloaded, took)
	case p.all == 0:
		return fmt.Sprintf("looking for what is compiled already, %v", took)
	case p.done == 0 || p.done >= p.all:
		return fmt.Sprintf("%d of %d packages, %v", p.done, p.all, took)
	}
	left := time.Duration(float64(took) / float64(p.done) * float64(p.all-p.done)).Round(time.Second)
	return fmt.Sprintf("%d of %d packages, %v, about %v left", p.done, p.all, took, left)
}

// plan runs the go command that downloads the modules of a build and lists the packages that it will compile.
func (p *progress) plan(ctx context.Context, list *exec.Cmd) (packages int, err error) {
	var out strings.Builder
	list.Stdout = &out
	if err := p.run(ctx, list); err != nil {
		return 0, err
	}
	packages = len(strings.Fields(out.String()))
	p.compiling(packages)
	return packages, nil
}

// compiling starts the compilation of this number of packages.
func (p *progress) compiling(packages int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.downloaded > 0 {
		p.print(fmt.Sprintf("%d Go modules downloaded", p.downloaded))
	}
	p.done, p.all, p.start = 0, packages, time.Now()
	p.print(fmt.Sprintf("%d packages to compile; what is compiled is kept when this is interrupted", packages))
}

// run runs a go command and follows its standard error. The error contains the lines that are not progress: the
// compiler's.
func (p *progress) run(ctx context.Context, cmd *exec.Cmd) error {
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run go (is it on PATH?): %w", err)
	}
	printed := p.follow(stderr)
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		if line := remedy.Of(err.Error()+"\n"+printed, causes); line != "" {
			return errors.New(line)
		}
		return errors.Join(err, errors.New(printed))
	}
	return nil
}

var (
	packageLine  = regexp.MustCompile(`^[a-zA-Z0-9_.~/-]+$`)
	downloadLine = regexp.MustCompile(`^go: downloading \S+ \S+$`)
)

// follow reads to the end and returns the lines that are not progress.
func (p *progress) follow(r io.Reader) string {
	var rest []string
	s := bufio.NewScanner(r)
	for s.Scan() {
		line := s.Text()
		p.mu.Lock()
		switch {
		case downloadLine.MatchString(line):
			p.downloaded++
		case packageLine.MatchString(line):
			p.done++
		default:
			rest = append(rest, line)
		}
		p.mu.Unlock()
	}
	return strings.Join(rest, "\n")
}
