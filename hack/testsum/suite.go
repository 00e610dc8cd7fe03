package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// heartbeat is the interval of progress lines; besideHeartbeat the interval for suites that run beside others.
const (
	heartbeat       = 15 * time.Second
	besideHeartbeat = 2 * time.Minute
)

// patience is how long a suite may clean up after SIGTERM before it gets SIGKILL.
const patience = time.Minute

// run runs one suite, and returns when all of its processes have ended.
func (s suite) run(ctx context.Context, root, logs string) result {
	r := result{name: s.name, log: filepath.Join(logs, s.name+".log")}
	events := filepath.Join(logs, s.name+".json")
	begun := time.Now()
	err := os.Remove(events)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = s.make(ctx, root, events, &r)
	}
	r.took = time.Since(begun)
	r.read(events, err)
	return r
}

// make runs `make suite-NAME`, and stores the end of its output in r.
func (s suite) make(ctx context.Context, root, events string, r *result) error {
	log, err := os.Create(r.log)
	if err != nil {
		return err
	}
	events, err = filepath.Abs(events)
	if err != nil {
		return err
	}
	out := &output{name: s.name, log: log, tail: &r.tail}
	cmd := exec.Command("make", "--no-print-directory", "suite-"+s.name)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, out, out
	cmd.Env = append(os.Environ(), "GOTESTSUM_FORMAT=standard-verbose", "GOTESTSUM_JSONFILE="+events)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		return err
	}
	if s.beside {
		leaveProcessors(cmd.Process.Pid)
	}
	stopBeat := out.beat(s.beside)
	stopEnd := context.AfterFunc(ctx, func() { end(cmd.Process.Pid) })
	err = cmd.Wait()
	stopEnd()
	end(cmd.Process.Pid) // processes that outlived make
	stopBeat()
	return errors.Join(err, log.Close())
}

// leaveProcessors gives a session only the processor time that others leave: as a process, and, if the kernel first
// divides processors between sessions (sched(7), autogroup), as a session. On an error the session runs normally.
func leaveProcessors(session int) {
	const least = 19
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, session, least)
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", session), []byte(strconv.Itoa(least)), 0)
}

// end ends all processes of a group: by SIGTERM, as tests and the lab clean up, and by SIGKILL after patience.
func end(group int) {
	err := syscall.Kill(-group, syscall.SIGTERM)
	for deadline := time.Now().Add(patience); err == nil && time.Now().Before(deadline); err = syscall.Kill(-group, 0) {
		time.Sleep(10 * time.Millisecond)
	}
	_ = syscall.Kill(-group, syscall.SIGKILL) // no process is left if err is ESRCH
}

// output writes a suite's output to its log, keeps the end, and prints the lines that show progress.
type output struct {
	name string
	log  io.Writer
	mu   sync.Mutex // guards the fields below
	tail *tail
	line []byte // that has not ended
}

// progress matches the lines of a log that are printed.
var progress = regexp.MustCompile(`^(== |ok  |FAIL\t|--- FAIL|make.*\*\*\*)`)

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*o.tail = o.tail.with(p)
	o.line = append(o.line, p...)
	for {
		line, rest, whole := bytes.Cut(o.line, []byte("\n"))
		if !whole {
			break
		}
		if progress.Match(line) {
			fmt.Printf("    %s: %s\n", o.name, line)
		}
		o.line = bytes.Clone(rest)
	}
	return o.log.Write(p)
}

// beat prints a line of progress at intervals until stop is called.
func (o *output) beat(beside bool) (stop func()) {
	every := heartbeat
	if beside {
		every = besideHeartbeat
	}
	begun, done := time.Now(), make(chan struct{})
	var finished sync.WaitGroup
	finished.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				o.mu.Lock()
				fmt.Printf("    ...  %s, %v: %s\n", o.name, time.Since(begun).Round(time.Second), o.tail.last())
				o.mu.Unlock()
			}
		}
	})
	return func() { close(done); finished.Wait() }
}

// tail is the end of an output.
type tail []byte

const tailSize = 16 << 10

func (t tail) with(p []byte) tail {
	all := append(t, p...)
	return bytes.Clone(all[max(0, len(all)-tailSize):])
}

// last returns the last line that is not empty, cut to the width of the screen.
func (t tail) last() string {
	text := strings.TrimSpace(string(t))
	line := strings.TrimSpace(text[strings.LastIndex(text, "\n")+1:])
	return line[:min(len(line), 100)]
}
