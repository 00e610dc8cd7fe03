package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reaper waits for all children. The first process of a PID namespace inherits all orphans (such as containerd's
// shims), so waiting for single children, as os/exec does, is not enough, and both together would take each other's
// exit statuses.
type reaper struct {
	// mu makes starting a child and recording its PID atomic, so that a child that exits at once is not taken for an
	// orphan.
	mu      sync.Mutex
	waiting map[int]chan string
	child   chan struct{}
}

func newReaper() *reaper {
	return &reaper{waiting: map[int]chan string{}, child: make(chan struct{}, 1)}
}

// start starts a daemon that logs to NAME.log, writes its PID to NAME.pid and returns a channel with its exit status.
func (r *reaper) start(name, path string, args []string) (<-chan string, error) {
	log, err := os.OpenFile(filepath.Join(stateDir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer null.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	// syscall instead of os, which would wait for the child by a pidfd.
	pid, err := syscall.ForkExec(path, append([]string{name}, args...), &syscall.ProcAttr{
		Dir: "/", Env: environment, Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s (%s): %w", name, path, err)
	}
	if err := os.WriteFile(filepath.Join(stateDir, name+pidSuffix), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return nil, fmt.Errorf("note the process id of %s: %w", name, err)
	}
	done := make(chan string, 1)
	r.waiting[pid] = done
	select {
	case r.child <- struct{}{}:
	default:
	}
	return done, nil
}

var environment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}

// run reaps children forever.
func (r *reaper) run() {
	for {
		var status syscall.WaitStatus
		// Wait without reaping: the PID must not be reused before its entry is removed.
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			<-r.child // nothing to wait for until a daemon is started
			continue
		case err != nil:
			continue // EINTR
		}
		r.mu.Lock()
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == nil && pid > 0 {
			if done, ok := r.waiting[pid]; ok {
				done <- describe(status)
				delete(r.waiting, pid)
			}
		}
		r.mu.Unlock()
	}
}

func describe(s syscall.WaitStatus) string {
	if s.Signaled() {
		return "killed by " + s.Signal().String()
	}
	return exitStatus + strconv.Itoa(s.ExitStatus())
}

// The status of a successful exit.
const (
	exitStatus = "exit status "
	success    = exitStatus + "0"
)

// settled is the minimum run time of a working containerd.
const settled = 5 * time.Second

// keepContainerd starts containerd, and restarts it whenever it exits, as systemd does. Its shims and their containers
// keep running. If it exits at once it cannot work: that is reported, and ends the node.
func (r *reaper) keepContainerd(ended chan<- string) error {
	start := func() (<-chan string, error) {
		return r.start("containerd", "/usr/bin/containerd", []string{"--config", stateDir + "/containerd.toml"})
	}
	done, err := start()
	if err != nil {
		return err
	}
	go func() {
		for err == nil {
			began := time.Now()
			how := <-done
			if gaveUp := strings.HasPrefix(how, exitStatus) && how != success; gaveUp && time.Since(began) < settled {
				ended <- "containerd ended: " + how
				return
			}
			done, err = start()
		}
		ended <- err.Error()
	}()
	return nil
}

// importImages imports the archives, once: they stay on the node's disk.
func (r *reaper) importImages(n int) error {
	const imported = stateDir + "/imported"
	if _, err := os.Stat(imported); err == nil {
		return nil
	}
	for i := range n {
		done, err := r.start("import", "/usr/bin/ctr", []string{"--namespace", "k8s.io", "images", "import", imageFile(i)})
		if err != nil {
			return err
		}
		if how := <-done; how != success {
			return fmt.Errorf("import image archive %d: %s; see import.log", i, how)
		}
	}
	return os.WriteFile(imported, nil, 0o644)
}

const pidSuffix = ".pid"

// ContainerdPID returns containerd's PID in the node's namespace, read from the node's directory.
func ContainerdPID(dir string) (int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "containerd"+pidSuffix))
	if err != nil {
		return 0, fmt.Errorf("find containerd: %w", err)
	}
	return strconv.Atoi(string(b))
}

func imageFile(i int) string { return filepath.Join(imageDir, strconv.Itoa(i)+".tar") }
