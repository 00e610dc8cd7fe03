package bgptest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
)

// process is a daemon of another implementation on a host. It ends when the standard input of its guard is closed, the
// write end of which this process holds.
type process struct {
	t     testing.TB
	name  string
	guard *exec.Cmd
	input io.Closer
	pid   int
	log   *logtest.Buffer
}

// guardScript runs a command, prints its process ID, and kills it when standard input is closed.
const guardScript = `"$@" </dev/null >&2 & echo $!; read never; kill -9 $! 2>/dev/null; wait`

// launch starts a program on the host, with its output in log.
func (h *Host) launch(log *logtest.Buffer, args ...string) *process {
	h.T.Helper()
	p := &process{t: h.T, name: args[0], log: log}
	p.guard = exec.Command("sh", append([]string{"-c", guardScript, "guard"}, args...)...)
	p.guard.Stderr = log
	in, err := p.guard.StdinPipe()
	errtest.Must(h.T, err)
	p.input = in
	out, err := p.guard.StdoutPipe()
	errtest.Must(h.T, err)
	h.Within(h.T, p.guard.Start)
	h.T.Cleanup(p.end)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		h.T.Fatalf("start %s: %v", args[0], err)
	}
	if p.pid, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		h.T.Fatalf("start %s: %v", args[0], err)
	}
	return p
}

// signal sends a signal to the program itself.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(p.pid, s); err != nil {
		p.t.Fatalf("send %s to %s: %v", s, p.name, err)
	}
}

// end kills the program, if it still runs, and returns when it has exited.
func (p *process) end() {
	if p.input == nil {
		return
	}
	_ = p.input.Close()
	_ = p.guard.Wait()
	p.input = nil
}

// ended reports that end was called.
func (p *process) ended() bool { return p.input == nil }

// gone returns an error while the program runs.
func (p *process) gone() error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil || strings.Contains(string(stat), ") Z ") {
		return nil
	}
	return fmt.Errorf("%s still runs", p.name)
}

// signalled sends a signal and waits for the exit after one that ends the program.
func (p *process) signalled(s syscall.Signal) {
	p.t.Helper()
	p.signal(s)
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		Eventually(p.t, p.gone)
		p.end()
	}
}
