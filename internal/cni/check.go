package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tortie-net/tortie/internal/podnet"
)

// check compares the kernel with what ADD has printed: the link, its address, its routes and its sysctls.
func check(_ context.Context, log *slog.Logger, args *skel.CmdArgs) error {
	r, err := parseRequest(args)
	if err != nil {
		return err
	}
	if err := checkNetns(r.netns); err != nil {
		return err
	}
	if err := version.ParsePrevResult(&r.conf.NetConf); err != nil {
		return failure(types.ErrDecodingFailure, err)
	}
	if r.conf.PrevResult == nil {
		return failure(types.ErrInvalidNetworkConfig, errors.New("network configuration: prevResult is missing: CHECK compares with the result of ADD"))
	}
	prev, err := types100.NewResultFromResult(r.conf.PrevResult)
	if err != nil {
		return failure(types.ErrDecodingFailure, fmt.Errorf("prevResult: %w", err))
	}
	addrs, err := resultAddrs(prev)
	if err != nil {
		return failure(types.ErrInvalidNetworkConfig, fmt.Errorf("prevResult: %w", err))
	}
	cfg := r.podConfig(log, addrs)
	for _, i := range prev.Interfaces {
		if i.Sandbox != "" && i.Name == r.ifName {
			cfg.MTU = i.Mtu // not the configured one, which may have changed since
		}
	}
	return podnet.Check(cfg)
}
