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
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/remedy"
)

// Intervals of progress: on a terminal, where one line is rewritten, and in a log.
const (
	terminalPause = time.Second
	logPause      = 10 * time.Second
)

// progress reports what go commands do: downloaded modules and compiled packages.
type progress struct {
	out      io.Writer
	name     string
	terminal bool
	stop     func() // stops the ticker

	mu         sync.Mutex // guards out and what follows
	start      time.Time  // of what is being done
	downloaded []string   // "module version"
	done, all  int        // packages
	ended      bool
}

func newProgress(out io.Writer, name string) *progress {
	p := &progress{out: out, name: name, terminal: isTerminal(out), start: time.Now()}
	fmt.Fprintf(out, "%s: building\n", name)
	done := make(chan struct{})
	var ticks sync.WaitGroup
	ticks.Go(func() { p.tick(done) })
	p.stop = sync.OnceFunc(func() { close(done); ticks.Wait() })
	return p
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func (p *progress) tick(done <-chan struct{}) {
	pause := logPause
	if p.terminal {
		pause = terminalPause
	}
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case now := <-t.C:
			p.show(now)
		}
	}
}

// clearLine returns to the beginning of a terminal's line and clears it.
const clearLine = "\r\x1b[K"

func (p *progress) show(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.name + ": " + p.line(now.Sub(p.start))
	if p.terminal {
		fmt.Fprint(p.out, clearLine+line)
	} else {
		fmt.Fprintln(p.out, line)
	}
}

// line returns the progress after a time.
func (p *progress) line(took time.Duration) string {
	took = took.Round(time.Second)
	switch {
	case p.all == 0 && len(p.downloaded) > 0:
		return fmt.Sprintf("%d Go modules downloaded, %v", len(p.downloaded), took)
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

// compiling starts the compilation of this number of packages, and reports the downloads for it.
func (p *progress) compiling(packages int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.print(downloadedText(p.downloaded, moduleCache()))
	p.downloaded, p.done, p.all, p.start = nil, 0, packages, time.Now()
	p.print(fmt.Sprintf("%d packages to compile; what is compiled is kept when this is interrupted", packages))
}

// print writes a permanent line.
func (p *progress) print(text string) {
	if text == "" {
		return
	}
	if p.terminal {
		fmt.Fprint(p.out, clearLine)
	}
	fmt.Fprintf(p.out, "%s: %s\n", p.name, text)
}

// end stops the progress; it is idempotent.
func (p *progress) end() {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && !p.ended {
		fmt.Fprint(p.out, clearLine)
	}
	p.ended = true
}

// run runs a go command and follows its standard error. The error contains the lines that are not progress: those of the compiler.
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
	downloadLine = regexp.MustCompile(`^go: downloading (\S+ \S+)$`)
)

// follow reads to the end and returns the lines that are not progress.
func (p *progress) follow(r io.Reader) string {
	var rest []string
	s := bufio.NewScanner(r)
	for s.Scan() {
		line := s.Text()
		p.mu.Lock()
		if m := downloadLine.FindStringSubmatch(line); m != nil {
			p.downloaded = append(p.downloaded, m[1])
		} else if packageLine.MatchString(line) {
			p.done++
		} else {
			rest = append(rest, line)
		}
		p.mu.Unlock()
	}
	return strings.Join(rest, "\n")
}

// moduleCache returns the directory of Go's module cache, or "".
func moduleCache() string {
	out, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return ""
	}
	return filepath.Join(strings.TrimSpace(string(out)), "cache", "download")
}

// downloadedText returns the number and total size of downloaded modules, "" for none.
func downloadedText(modules []string, cache string) string {
	if len(modules) == 0 {
		return ""
	}
	var size int64
	for _, m := range modules {
		name, version, _ := strings.Cut(m, " ")
		st, err := os.Stat(filepath.Join(cache, escape(name), "@v", escape(version)+".zip"))
		if err == nil {
			size += st.Size()
		}
	}
	return fmt.Sprintf("%d Go modules downloaded, %.1f MB", len(modules), float64(size)/(1<<20))
}

// escape returns the path of a module and version in the cache: https://go.dev/ref/mod#module-cache.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}
