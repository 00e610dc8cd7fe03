package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// footprint is the memory of an execution.
type footprint struct {
	peak      int64 // kB: the largest resident set of a process
	processes int
}

// trace executes a program on the node under ptrace and reads the memory of each process at its exit. The figure in rusage is not usable: exec
// carries over that of the parent (fs/exec.c, exec_mmap).
func (n *node) trace(e execution) (footprint, error) {
	var f footprint
	err := n.Do(func() error {
		leader, err := startTraced(e)
		if err != nil {
			return err
		}
		f, err = follow(leader)
		return err
	})
	if err != nil {
		return f, fmt.Errorf("trace %s: %w", e.program, err)
	}
	return f, nil
}

// startTraced starts a program, stopped at its first instruction, with the calling thread as tracer.
func startTraced(e execution) (pid int, err error) {
	stdin, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer stdin.Close()
	_, err = write.Write(e.stdin) // less than a pipe takes
	if err = errors.Join(err, write.Close()); err != nil {
		return 0, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	p, err := os.StartProcess(e.program, append([]string{e.program}, e.args...), &os.ProcAttr{
		Env: append([]string{}, e.env...), Files: []*os.File{stdin, null, null}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return 0, err
	}
	pid = p.Pid
	return pid, p.Release() // follow reaps it
}

const traceOptions = unix.PTRACE_O_TRACEEXIT | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC

// follow runs the program and its children to their exit.
func follow(leader int) (footprint, error) {
	var f footprint
	f.processes = 1
	exit := -1
	for first := true; ; first = false {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		if err == unix.EINTR {
			continue
		}
		if err == unix.ECHILD {
			break
		}
		if err != nil {
			return f, fmt.Errorf("wait: %w", err)
		}
		switch {
		case status.Exited() && pid == leader:
			exit = status.ExitStatus()
		case first:
			err = unix.PtraceSetOptions(pid, traceOptions)
		case status.TrapCause() == unix.PTRACE_EVENT_EXEC:
			f.processes++ // forks without exec do not count: Go's runtime makes one as a probe
		case status.TrapCause() == unix.PTRACE_EVENT_EXIT:
			var m memory
			m, err = memoryOf(pid)
			f.peak = max(f.peak, m.peak)
		}
		if err != nil {
			return f, err
		}
		if status.Stopped() {
			resume(pid, status)
		}
	}
	if exit != 0 {
		return f, fmt.Errorf("exit status %d", exit)
	}
	return f, nil
}

// resume resumes a stopped thread, with its pending signal unless the stop is ptrace's own.
func resume(pid int, status unix.WaitStatus) {
	signal := status.StopSignal()
	if signal == unix.SIGTRAP || signal == unix.SIGSTOP {
		signal = 0
	}
	_ = unix.PtraceCont(pid, int(signal)) // it may have been killed, which the next wait reports
}
