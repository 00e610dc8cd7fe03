package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// delegated executes the IPAM plugin that the configuration names, with the same configuration.
type delegated struct{ *session }

// add runs the IPAM plugin, which uses the configuration's version, and converts its result to the newest. A plugin
// that returned an error with a code has assigned nothing; after another failure it may have assigned, and DEL is run.
func (d *delegated) add(ctx context.Context, wanted func() (request, error)) (*types100.Result, error) {
	if _, err := wanted(); err != nil {
		return nil, err
	}
	program, err := d.find()
	if err != nil {
		return nil, err
	}
	stdin, err := d.stdinForAdd(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := invoke.ExecPluginWithResult(ctx, program, stdin, environment{"ADD", d.args}, nil)
	var said *types.Error
	if errors.As(err, &said) && said.Code != types.ErrUnknown {
		return nil, d.blame(ctx, err)
	}
	if err != nil {
		return nil, d.undo(ctx, false, d.blame(ctx, err), nothing)
	}
	res, err := types100.NewResultFromResult(answer)
	if err != nil {
		return nil, d.undo(ctx, false, d.blame(ctx, fmt.Errorf("its result: %w", err)), nothing)
	}
	return res, nil
}

// del runs the IPAM plugin even if the datastore cannot be reached to clear the endpoint: the plugin does not depend on
// it.
func (d *delegated) del(ctx context.Context, may clearance) error {
	if err := may.removed(); err != nil {
		return err
	}
	noted := postponable(may.noted())
	var later *postponed
	if noted != nil && !errors.As(noted, &later) {
		return noted
	}
	if err := d.exec(ctx, "DEL"); err != nil {
		return err
	}
	return noted
}

// exec runs the IPAM plugin for a verb that assigns nothing and has no result.
func (d *delegated) exec(ctx context.Context, verb string) error {
	program, err := d.find()
	if err != nil {
		return err
	}
	stdin, err := d.stdinForDel()
	if err != nil {
		return err
	}
	if err := invoke.ExecPluginWithoutResult(ctx, program, stdin, environment{verb, d.args}, nil); err != nil {
		return d.blame(ctx, err)
	}
	return nil
}

// find returns the path of the IPAM plugin; its error names the remedy.
func (d *delegated) find() (string, error) {
	program, err := invoke.FindInPath(d.conf.IPAM.Type, filepath.SplitList(d.path))
	if err != nil {
		return "", failure(types.ErrInvalidNetworkConfig,
			fmt.Errorf("network configuration: ipam.type: %w: install it there, or use %s", err, calicoIPAM))
	}
	return program, nil
}

// environment is the IPAM plugin's environment, inherited but for the verb. Without IgnoreUnknown the plugin would
// refuse the pod's keys in CNI_ARGS.
type environment struct{ verb, args string }

// AsEnv implements invoke.CNIArgs.
func (e environment) AsEnv() []string {
	env := (&invoke.DelegateArgs{Command: e.verb}).AsEnv()
	return append(env, "CNI_ARGS="+ignoreUnknown(e.args)) // of two values of a variable the last counts
}

// blame names the IPAM plugin in an error, and the deadline if that killed it.
func (d *delegated) blame(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("IPAM plugin %s: %w (%s)", d.conf.IPAM.Type, context.Cause(ctx), err.Error())
	}
	return fmt.Errorf("IPAM plugin %s: %w", d.conf.IPAM.Type, err)
}
