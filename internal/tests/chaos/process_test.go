package chaos

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// process is a program that runs all the time, and that is killed and started again.
type process struct {
	name, bin string
	env       []string
	// within starts it where it is to run; nil: here.
	within func(func() error) error

	mu    sync.Mutex // guards all below
	cmd   *exec.Cmd
	began int
	said  bytes.Buffer // by all of its processes, one after the other
}

// endWith kills the process when the test ends, and shows what it said if that failed.
func (p *process) endWith(t testing.TB) {
	t.Cleanup(func() {
		if err := p.kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", p.name, tail(p.said.String(), 6000))
		}
	})
}

// start starts the process, each time under another name, as a Deployment does.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began++
	p.cmd = exec.Command(p.bin)
	p.cmd.Env = append(os.Environ(), append(p.env, fmt.Sprintf("POD_NAME=%s-%d", p.name, p.began))...)
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	if p.within == nil {
		return p.cmd.Start()
	}
	return p.within(p.cmd.Start)
}

// kill ends the process with SIGKILL, if it runs.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("%s has ended by itself: %w: %s", p.name, err, tail(p.said.String(), 2000))
	}
	_ = p.cmd.Wait()
	status := p.cmd.ProcessState
	p.cmd = nil
	if status.Exited() {
		return fmt.Errorf("%s has ended by itself: %s: %s", p.name, status, tail(p.said.String(), 2000))
	}
	return nil
}

func tail(text string, n int) string { return text[max(0, len(text)-n):] }
