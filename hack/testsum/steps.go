package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// heartbeat is the interval of progress lines; besideHeartbeat that of suites that run beside others.
const (
	heartbeat       = 15 * time.Second
	besideHeartbeat = 2 * time.Minute
)

func (s suite) heartbeat() time.Duration {
	if s.beside {
		return besideHeartbeat
	}
	return heartbeat
}

func (s suite) run(ctx context.Context, logPath string) result {
	start := time.Now()
	r := result{name: s.name}
	log, err := os.Create(logPath)
	if err != nil {
		r.fail("log", err.Error())
		return r
	}
	if s.tests != nil {
		s.runTests(ctx, log, &r)
	}
	for _, step := range s.steps {
		s.runStep(ctx, step, log, &r)
	}
	if err := log.Close(); err != nil {
		r.fail("log", err.Error())
	}
	r.took = time.Since(start)
	return r
}

// fail counts a test or command that failed with this output.
func (r *result) fail(name, output string) {
	r.failed++
	r.failures = append(r.failures, name)
	if r.said == nil {
		r.said = map[string]string{}
	}
	r.said[name] = inShort(output)
}

// inShort returns the first and the last of what a test recorded, or of the lines where there are no records: the log may be gone when
// somebody reads the summary.
func inShort(output string) string {
	const half, width = 4, 300
	said := record.FindAllString(output, -1)
	if said == nil {
		said = strings.Split(strings.TrimSpace(output), "\n")
	}
	if more := len(said) - 2*half; more > 0 {
		said = slices.Concat(said[:half], []string{"..."}, said[half+more:])
	}
	var b strings.Builder
	for _, line := range said {
		fmt.Fprintf(&b, "    %.*s\n", width, strings.TrimSpace(line))
	}
	return b.String()
}

// notChecked is the prefix of the last line of a command that could not run on this machine, which is no failure.
const notChecked = "NOT CHECKED"

// runStep runs one command and prints its output only if it fails.
func (s suite) runStep(ctx context.Context, step step, log io.Writer, r *result) {
	start := time.Now()
	var output tail
	cmd := s.command(ctx, step.dir, nil, step.args...)
	cmd.Stdout = io.MultiWriter(log, &output)
	cmd.Stderr = cmd.Stdout
	fmt.Fprintf(log, "$ %s\n", strings.Join(step.args, " "))
	stop := beat(s.heartbeat(), step.name, output.last)
	err := cmd.Run()
	stop()
	took := time.Since(start).Round(100 * time.Millisecond)
	if err != nil {
		fmt.Printf("%s    FAIL %s (%v): %v\n", output.text(), step.name, took, err)
		r.fail(step.name, output.text())
		return
	}
	if why := output.last(); strings.HasPrefix(why, notChecked) {
		fmt.Printf("    SKIP %s (%v): %s\n", step.name, took, why)
		r.skipped++
		r.skips = append(r.skips, step.name)
		return
	}
	fmt.Printf("    ok   %s (%v)\n", step.name, took)
	r.passed++
}

// command returns a command that gets SIGTERM instead of SIGKILL when ctx ends, as tests and the lab clean up.
func (s suite) command(ctx context.Context, dir string, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = filepath.Join(s.root, dir)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if s.beside { // in a session of its own, which has a share of the processors
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	}
	cmd.WaitDelay = time.Minute
	return cmd
}

// start starts a command of a suite. One that runs beside others gets what these leave of the processors: as a process, and, where the kernel divides
// processors between sessions first (sched(7), autogroup), as a session.
func (s suite) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil || !s.beside {
		return err
	}
	const least = 19
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, cmd.Process.Pid, least) // it runs all the same
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", cmd.Process.Pid), []byte(strconv.Itoa(least)), 0)
	return nil
}

// beat prints a line of progress at intervals until stop is called.
func beat(every time.Duration, name string, last func() string) (stop func()) {
	start := time.Now()
	done := make(chan struct{})
	var finished sync.WaitGroup
	finished.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Printf("    ...  %s, %v: %s\n", name, time.Since(start).Round(time.Second), last())
			}
		}
	})
	return func() { close(done); finished.Wait() }
}

// tail keeps the end of an output.
type tail struct {
	mu  sync.Mutex // guards buf
	buf []byte
}

const tailSize = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailSize; extra > 0 {
		t.buf = bytes.Clone(t.buf[extra:])
	}
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// last returns the last line that is not empty, cut to the width of the screen.
func (t *tail) last() string {
	lines := strings.Split(strings.TrimSpace(t.text()), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	return line[:min(len(line), 100)]
}

func (s suite) runTests(ctx context.Context, log io.Writer, r *result) {
	t := s.tests
	packages, err := s.packages(ctx)
	if err != nil {
		fmt.Printf("    FAIL %v\n", err)
		r.fail("go list", err.Error())
		return
	}
	// The suites lint and format vet all packages, and with more of go vet's checks than go test would.
	args := []string{"go", "test", "-json", "-vet=off"}
	if !t.cached {
		args = append(args, "-count=1")
	}
	args = slices.Concat(args, t.flags, packages, t.own)
	fmt.Fprintf(log, "$ %s\n", strings.Join(args, " "))
	cmd := s.command(ctx, t.dir, t.env, args...)
	var stderr tail
	cmd.Stderr = io.MultiWriter(log, &stderr)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = s.start(cmd)
	}
	if err != nil {
		fmt.Printf("    FAIL go test: %v\n", err)
		r.fail("go test", err.Error())
		return
	}
	count := newCounter(log)
	stop := beat(s.heartbeat(), s.name, count.last)
	readErr := count.read(out)
	stop()
	runErr := cmd.Wait()
	count.into(r)
	// A run that fails without a failed test did not compile, or was killed.
	if err := errors.Join(readErr, runErr); err != nil && r.failed == 0 {
		fmt.Printf("%s    FAIL go test: %v\n", stderr.text(), err)
		r.fail("go test", stderr.text())
	}
}

// packages returns the packages to test; an explicit list reports a misspelt package, which a pattern ignores.
func (s suite) packages(ctx context.Context) ([]string, error) {
	pattern := cmp.Or(s.tests.only, "./...")
	out, err := s.command(ctx, s.tests.dir, nil, append([]string{"go", "list"}, strings.Fields(pattern)...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", pattern, err)
	}
	linking, err := s.linking(ctx, pattern)
	if err != nil {
		return nil, err
	}
	var packages []string
	for _, name := range strings.Fields(string(out)) {
		if !s.excludes(name) && !slices.Contains(linking, name) {
			packages = append(packages, name)
		}
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("go list %s: no packages", pattern)
	}
	return s.inOrder(packages)
}

// inOrder puts the packages first with which the suite shall begin: go test starts them in the order of its arguments.
func (s suite) inOrder(packages []string) ([]string, error) {
	var first []string
	for _, dir := range s.tests.first {
		i := slices.IndexFunc(packages, func(name string) bool { return strings.HasSuffix(name, "/"+dir) })
		if i < 0 {
			return nil, fmt.Errorf("no package %s, with which the suite %s shall begin", dir, s.name)
		}
		first = append(first, packages[i])
		packages = slices.Delete(packages, i, i+1)
	}
	return append(first, packages...), nil
}

// linking returns the packages whose tests link the excluded package.
func (s suite) linking(ctx context.Context, pattern string) ([]string, error) {
	if s.tests.without == "" {
		return nil, nil
	}
	const binaries = `{{if eq .Name "main"}}{{.ImportPath}}{{range .Deps}} {{.}}{{end}}{{end}}`
	args := append([]string{"go", "list", "-test", "-f", binaries}, strings.Fields(pattern)...)
	out, err := s.command(ctx, s.tests.dir, nil, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list -test %s: %w", pattern, err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		binary, deps, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, ok := strings.CutSuffix(binary, ".test")
		// A package compiled for a test has the test's name behind it: "path [binary]".
		if ok && slices.ContainsFunc(strings.Fields(deps), func(dep string) bool { return strings.HasSuffix(dep, "/"+s.tests.without) }) {
			found = append(found, name)
		}
	}
	return found, nil
}

func (s suite) excludes(name string) bool {
	for _, dir := range s.tests.except {
		if strings.HasSuffix(name, "/"+dir) {
			return true
		}
	}
	return false
}
