package cni

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/tortie-net/tortie/internal/podnet"
)

// del takes away a pod's link and address. It succeeds if they are gone already: a runtime repeats DEL until it does.
func del(ctx context.Context, log *slog.Logger, args *skel.CmdArgs) error {
	s, err := open(log, args, calico)
	if err != nil {
		return err
	}
	if err := spareNode(s.netns); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	if err := s.endpoint().clear(ctx); err != nil {
		return fmt.Errorf("note on the pod that its address is released: %w", err)
	}
	if err := podnet.Teardown(ctx, s.netns, s.ifName, s.hostVeth()); err != nil {
		return fmt.Errorf("remove the pod's link: %w", err)
	}
	return s.addressing().del(ctx, cleared)
}
