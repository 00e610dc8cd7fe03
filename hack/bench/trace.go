package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// footprint is how large an execution became.
type footprint struct {
	peak      int64 // kB: the largest resident set of a process
	processes int
}

// trace executes a program on the node under ptrace and looks at each of its processes in the moment of its end. The figure
// in rusage does not serve: at exec the kernel carries over what the starting process had (fs/exec.c, exec_mmap).
func (n *node) trace(e execution) (footprint, error) {
	var f footprint
	err := n.do(func() error {
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

// startTraced starts a program, which stops at its first instruction. Its tracer is the calling thread.
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

// follow lets the program and all that it starts run to their end.
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
			f.processes++ // only programs count: Go's runtime forks once just to see whether that works
		case status.TrapCause() == unix.PTRACE_EVENT_EXIT:
			var peak int64
			peak, err = largest(pid)
			f.peak = max(f.peak, peak)
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

// resume lets a stopped thread go on, with the signal that it was to get unless the stop is ptrace's own.
func resume(pid int, status unix.WaitStatus) {
	signal := status.StopSignal()
	if signal == unix.SIGTRAP || signal == unix.SIGSTOP {
		signal = 0
	}
	_ = unix.PtraceCont(pid, int(signal)) // it may have been killed meanwhile, which the next wait tells
}

// largest reads how large the process of a thread has been, in kB.
func largest(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return statusField(text, "VmHWM:")
}

// statusField reads a number of /proc/PID/status; a process that is ending may have lost it, and then it is 0.
func statusField(status []byte, name string) (int64, error) {
	_, rest, _ := bytes.Cut(status, []byte("\n"+name))
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0, nil
	}
	return strconv.ParseInt(string(fields[0]), 10, 64)
}
