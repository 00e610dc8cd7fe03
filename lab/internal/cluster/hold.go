package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Hold is the reservation of a lab's name, for a virtual machine that runs the lab.
type Hold struct {
	state State
	lock  *os.File
}

// Take reserves a name for this process, and removes the remains of an earlier lab of that name.
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

// Socket returns the path for the virtual machine's channel.
func (h *Hold) Socket() string { return h.state.VM }

// Dir returns a directory that is removed with the reservation or its remains.
func (h *Hold) Dir() string { return stateDir(h.state.Name) }

// Ready records that the lab in the virtual machine is ready.
func (h *Hold) Ready() error {
	h.state.Ready = true
	return h.state.write()
}

// Release releases the name.
func (h *Hold) Release() error {
	return errors.Join(removeRunDir(h.state.Name), h.lock.Close())
}

// takeLock locks a lab and removes the remains of an earlier one.
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
