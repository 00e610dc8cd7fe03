package cni

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// delegateAdd runs the IPAM plugin, which speaks the configuration's version, and reads its result as the newest. A plugin
// that says why it failed has assigned nothing; one that ends in another way may have.
func delegateAdd(ctx context.Context, r *request) (*types100.Result, error) {
	if err := r.findIPAM(); err != nil {
		return nil, err
	}
	answer, err := invoke.DelegateAdd(ctx, r.conf.IPAM.Type, r.stdin, nil)
	var said *types.Error
	if errors.As(err, &said) && said.Code != types.ErrUnknown {
		return nil, r.ofIPAM(ctx, err)
	}
	if err != nil {
		return nil, undo(ctx, r, false, r.ofIPAM(ctx, err))
	}
	res, err := types100.NewResultFromResult(answer)
	if err != nil {
		return nil, undo(ctx, r, false, r.ofIPAM(ctx, fmt.Errorf("its result: %w", err)))
	}
	return res, nil
}

// findIPAM says what to do about an IPAM plugin that is not there.
func (r *request) findIPAM() error {
	if _, err := invoke.FindInPath(r.conf.IPAM.Type, filepath.SplitList(r.path)); err != nil {
		return failure(types.ErrInvalidNetworkConfig,
			fmt.Errorf("network configuration: ipam.type: %w: container install of tortie-node puts calico-ipam there: see its log", err))
	}
	return nil
}

// ofIPAM says that an error is the IPAM plugin's, or that of the deadline by which it was killed.
func (r *request) ofIPAM(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("IPAM plugin %s: %w (%v)", r.conf.IPAM.Type, context.Cause(ctx), err)
	}
	return fmt.Errorf("IPAM plugin %s: %w", r.conf.IPAM.Type, err)
}

// delegateDel has the IPAM plugin release what it holds for the container.
func delegateDel(ctx context.Context, r *request) error {
	if err := r.findIPAM(); err != nil {
		return err
	}
	if err := invoke.DelegateDel(ctx, r.conf.IPAM.Type, r.stdin, nil); err != nil {
		return r.ofIPAM(ctx, err)
	}
	return nil
}
