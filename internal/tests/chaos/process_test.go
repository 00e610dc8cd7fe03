package chaos

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// process is a daemon that is killed and restarted.
type process struct {
	name, bin string
	env       []string
	// within runs the start of the process on a node; nil: in the test's namespaces.
	within func(func() error) error

	mu     sync.Mutex // guards all below
	cmd    *exec.Cmd
	began  int
	output bytes.Buffer // output of all of its processes, in order
}

// endWith kills the process when the test ends, and logs its output if the test failed.
func (p *process) endWith(t testing.TB) {
	t.Cleanup(func() {
		if err := p.kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("output of %s:\n%s", p.name, tail(p.output.String(), 6000))
		}
	})
}

// start starts the process under a new pod name, as a Deployment does.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began++
	p.cmd = exec.Command(p.bin)
	p.cmd.Env = append(os.Environ(), append(p.env, fmt.Sprintf("POD_NAME=%s-%d", p.name, p.began))...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
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
		return fmt.Errorf("%s has exited: %w: %s", p.name, err, tail(p.output.String(), 2000))
	}
	_ = p.cmd.Wait()
	status := p.cmd.ProcessState
	p.cmd = nil
	if status.Exited() {
		return fmt.Errorf("%s has exited: %s: %s", p.name, status, tail(p.output.String(), 2000))
	}
	return nil
}

func tail(text string, n int) string { return text[max(0, len(text)-n):] }
