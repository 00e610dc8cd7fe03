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

// reaper waits for every child. The first process of a pid namespace inherits all orphans (containerd's shims among
// them), so waiting for single children, as os/exec does, is not enough, and both together would steal from each other.
type reaper struct {
	// mu makes starting a child and noting its pid one step, so that a child that ends at once is not taken for an orphan.
	mu      sync.Mutex
	waiting map[int]chan string
	child   chan struct{}
}

func newReaper() *reaper {
	return &reaper{waiting: map[int]chan string{}, child: make(chan struct{}, 1)}
}

// start starts a daemon that logs to NAME.log, notes its process id in NAME.pid and returns a channel that tells how it ended.
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
	// syscall and not os: os would wait for the child by a pidfd of its own.
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

// run reaps for ever.
func (r *reaper) run() {
	for {
		var status syscall.WaitStatus
		// Wait without collecting: the pid must not be free for reuse before its entry is gone.
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

// How a process ended by itself, and well.
const (
	exitStatus = "exit status "
	success    = exitStatus + "0"
)

// settled is how long containerd lives at least if it can work.
const settled = 5 * time.Second

// keepContainerd starts containerd, and again whenever it has ended, as systemd does. Its shims and their containers live on
// meanwhile. One that gives up at once never will work: that is told, and ends the node.
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

// ContainerdPID is containerd's process id as the node sees it, read from the node's directory.
func ContainerdPID(dir string) (int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "containerd"+pidSuffix))
	if err != nil {
		return 0, fmt.Errorf("find containerd: %w", err)
	}
	return strconv.Atoi(string(b))
}

func imageFile(i int) string { return filepath.Join(imageDir, strconv.Itoa(i)+".tar") }
