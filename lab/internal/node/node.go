// Package node is the first process of a node's namespaces.
//
// It creates the node's root file system, in which the machine's programs are read-only and nothing of the machine is
// writable, starts containerd, kubelet and kube-proxy there, and reaps orphans. A node has no pod network:
// /etc/cni/net.d is empty until a chart fills it.
package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/cgroup"
)

// CloneFlags are the namespaces that a node's first process must be started in, in addition to the network namespace.
// It creates its cgroup namespace itself, once it is in the cgroup that becomes its root.
const CloneFlags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC

// Names of the two stages of the first process: argv[0].
const (
	EnterName = "tortie-lab-node"
	InitName  = "tortie-lab-init"
)

// Enter is the first stage: it moves into the node's cgroup, creates the cgroup namespace and execs the second stage.
// It returns only on error.
func Enter(configPath string) error {
	c, err := readConfig(configPath)
	if err != nil {
		return err
	}
	layout, err := cgroup.Detect()
	if err != nil {
		return err
	}
	if err := layout.Join(c.Lab, c.Name); err != nil {
		return err
	}
	// A namespace belongs to a thread; exec leaves only this one.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make the cgroup namespace: %w", err)
	}
	return unix.Exec("/proc/self/exe", []string{InitName, configPath}, os.Environ())
}

// Init is the second stage. It returns when a daemon of the node has exited, which ends the node; containerd is
// restarted instead.
func Init(ctx context.Context, configPath string) error {
	c, err := readConfig(configPath)
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("set the hostname: %w", err)
	}
	if err := makeRoot(c); err != nil {
		return fmt.Errorf("make the root file system: %w", err)
	}
	r := newReaper()
	go r.run()
	return run(ctx, c, r)
}

func run(ctx context.Context, c Config, r *reaper) error {
	ended := make(chan string, 3)
	start := func(name, path string, args ...string) error {
		done, err := r.start(name, path, args)
		if err != nil {
			return err
		}
		go func() { ended <- fmt.Sprintf("%s ended: %s", name, <-done) }()
		return nil
	}
	if err := r.keepContainerd(ended); err != nil {
		return err
	}
	if err := waitFor(ctx, "containerd", ended, func() error { return Answers(ctx, ContainerdSocket) }); err != nil {
		return err
	}
	if err := r.importImages(len(c.Images)); err != nil {
		return err
	}
	kubeconfig := filepath.Join(stateDir, kubeconfigFile)
	if err := waitFor(ctx, kubeconfig, ended, func() error { _, err := os.Stat(kubeconfig); return err }); err != nil {
		return err
	}
	if err := start("kubelet", binDir+"/kubelet", "--config="+stateDir+"/kubelet.yaml", "--kubeconfig="+kubeconfig,
		"--node-ip="+list(c.Addrs), "--hostname-override="+c.Name, "--housekeeping-interval=2m"); err != nil {
		return err
	}
	if err := start("kube-proxy", binDir+"/kube-proxy", "--config="+stateDir+"/proxy.yaml"); err != nil {
		return err
	}
	return fmt.Errorf("node %s: %s", c.Name, <-ended)
}

// waitFor returns when something is there. The starter of the node enforces the deadline by killing it.
func waitFor(ctx context.Context, what string, ended <-chan string, there func() error) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		err := there()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case how := <-ended:
			return fmt.Errorf("wait for %s: %s", what, how)
		case <-t.C:
		}
	}
}
