package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Hold is a lab's name, taken for a virtual machine that the lab runs in.
type Hold struct {
	state State
	lock  *os.File
}

// Take takes a name for this process. What is left of an earlier lab of that name is removed.
func Take(ctx context.Context, name string) (*Hold, error) {
	if !labName.MatchString(name) {
		return nil, fmt.Errorf("lab name %q: 1 to 20 of a-z and 0-9", name)
	}
	held, err := takeLock(ctx, name)
	if err != nil {
		return nil, err
	}
	h := &Hold{lock: held, state: State{
		Spec: Spec{Name: name}, Supervisor: os.Getpid(), Started: time.Now(), VM: filepath.Join(stateDir(name), "vm.sock")}}
	if err := h.state.write(); err != nil {
		return nil, errors.Join(err, h.Release())
	}
	return h, nil
}

// Socket is where the virtual machine's channel shall be.
func (h *Hold) Socket() string { return h.state.VM }

// Dir is a directory that goes when the name is given back, or when what is left of it is removed.
func (h *Hold) Dir() string { return stateDir(h.state.Name) }

// Ready notes that the lab in the virtual machine can be used.
func (h *Hold) Ready() error {
	h.state.Ready = true
	return h.state.write()
}

// Release gives the name back.
func (h *Hold) Release() error {
	return errors.Join(removeRunDir(h.state.Name), h.lock.Close())
}

// takeLock takes a lab's lock and removes what an earlier lab of that name has left.
func takeLock(ctx context.Context, name string) (*os.File, error) {
	held, err := lock(name)
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("lab %q runs already: lab down -name %s stops it", name, name)
	}
	if err != nil {
		return nil, fmt.Errorf("take the lab %q: %w", name, err)
	}
	if err := sweep(ctx, name); err != nil {
		return nil, errors.Join(fmt.Errorf("remove what was left of an earlier lab %q: %w", name, err), held.Close())
	}
	return held, nil
}
