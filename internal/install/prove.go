package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

const (
	// proofTime bounds the execution of one plugin: a node that is starting may be very busy.
	proofTime = 20 * time.Second
	busyPause = 10 * time.Millisecond
)

// proveBinaries executes each plugin at its place on the host, in parallel, with the command VERSION.
func proveBinaries(ctx context.Context, paths []string) error {
	var group errgroup.Group
	for _, path := range paths {
		group.Go(func() error { return proveBinary(ctx, path) })
	}
	return group.Wait()
}

func proveBinary(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	out, stderr, err := askVersion(ctx, path)
	// After ETXTBSY a process that forked while the file was written still has it open.
	for errors.Is(err, syscall.ETXTBSY) && wait.Sleep(ctx, busyPause) {
		out, stderr, err = askVersion(ctx, path)
	}
	if err != nil {
		return fmt.Errorf("plugin %s does not run on this node: %w%s%s", path, err, said(stderr, out), execRemedy(path, err))
	}
	var answer struct{ SupportedVersions []string }
	if err := json.Unmarshal(out, &answer); err != nil || len(answer.SupportedVersions) == 0 {
		return fmt.Errorf("plugin %s is no CNI plugin: asked for its version, it says %.200q", path, out)
	}
	return nil
}

func askVersion(ctx context.Context, path string) (stdout, stderr []byte, err error) {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	var printed bytes.Buffer
	cmd.Stderr = &printed
	cmd.WaitDelay = time.Second
	stdout, err = cmd.Output()
	return stdout, printed.Bytes(), err
}

// said returns the output of a failed program, formatted for an error.
func said(texts ...[]byte) string {
	text := strings.TrimSpace(string(bytes.Join(texts, nil)))
	if text == "" {
		return ""
	}
	return fmt.Sprintf(": %.200q", text)
}

func execRemedy(path string, err error) string {
	switch {
	case errors.Is(err, syscall.EACCES) && isNoexec(path):
		return fmt.Sprintf(" (the file system of %s is mounted noexec: remount it with exec, or set CNI's directory of plugins in the runtime "+
			"and HOST_CNI_BIN_DIR to one that is not)", filepath.Dir(path))
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return " (a security module such as SELinux or AppArmor forbids to execute it)"
	case errors.Is(err, syscall.ENOEXEC):
		return " (it is for another processor, or damaged: use the image of this node's architecture)"
	}
	return ""
}

func isNoexec(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0
}

// proveKubeconfig makes one request that every plugin makes, with the plugins' own code and file.
func proveKubeconfig(ctx context.Context, path string) error {
	cfg, err := kubernetes.LoadKubeconfig(path)
	if err != nil {
		return err
	}
	cfg.UserAgent = userAgent
	store, err := kubernetes.New(cfg)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := store.Lock(ctx, groups.V1); err != nil { // a cluster of the other group has none, which is no error
		return fmt.Errorf("a request with the plugins' kubeconfig %s: %w", path, err)
	}
	return nil
}
