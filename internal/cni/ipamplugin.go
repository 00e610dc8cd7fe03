package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/names"
)

// ipamPlugin is the name under which the IPAM plugin logs and identifies itself.
const ipamPlugin = "calico-ipam"

// timestampFormat is that of the attribute "timestamp": Go's own for a time, as Calico writes it.
const timestampFormat = "2006-01-02 15:04:05.999999999 -0700 MST"

// IPAMFuncs returns the verbs of calico-ipam.
func IPAMFuncs() skel.CNIFuncs {
	return skel.CNIFuncs{
		Add: func(args *skel.CmdArgs) error {
			return run(ipamPlugin, "ADD", args, func(ctx context.Context, log *slog.Logger) error {
				return ipamAdd(ctx, log, args)
			})
		},
		Del: func(args *skel.CmdArgs) error {
			return run(ipamPlugin, "DEL", args, func(ctx context.Context, log *slog.Logger) error {
				return ipamDel(ctx, log, args)
			})
		},
	}
}

func ipamAdd(ctx context.Context, log *slog.Logger, args *skel.CmdArgs) error {
	r, err := parseRequest(args)
	if err != nil {
		return err
	}
	store, err := openStore(&r.conf, ipamPlugin)
	if err != nil {
		return err
	}
	req, err := assignRequest(ctx, store, r)
	if err != nil {
		return err
	}
	unlock := lockHost(log, r.conf.IPAMLockFile)
	defer unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ipamTime)
	defer cancel()
	assigned, err := ipam.NewClient(store, time.Now).Assign(ctx, req)
	if err != nil {
		return err
	}
	log.Info("assigned", "handle", req.Handle, "addresses", assigned)
	return types.PrintResult(ipamResult(assigned), r.conf.CNIVersion)
}

// assignRequest says what the pod needs. The namespace's labels decide which pools may serve it.
func assignRequest(ctx context.Context, store *kubernetes.Store, r *request) (ipam.Request, error) {
	ns := api.Namespace{Meta: api.Meta{Name: r.namespace}}
	if err := store.Get(ctx, &ns); err != nil {
		return ipam.Request{}, fmt.Errorf("read the pod's namespace: %w", err)
	}
	req := ipam.Request{
		Owner: ipam.Owner{
			Handle: names.PodHandle(r.conf.Name, r.containerID),
			Attrs: map[string]string{
				"node":      r.node,
				"pod":       r.pod,
				"namespace": r.namespace,
				"timestamp": time.Now().UTC().Format(timestampFormat),
			},
		},
		Host:            r.node,
		V4:              r.conf.wantsV4(),
		V6:              r.conf.wantsV6(),
		PoolsV4:         r.conf.IPAM.IPv4Pools,
		PoolsV6:         r.conf.IPAM.IPv6Pools,
		Use:             api.UseWorkload,
		NamespaceLabels: ns.Labels,
	}
	if !req.V4 && !req.V6 {
		return ipam.Request{}, failure(types.ErrInvalidNetworkConfig,
			errors.New(`network configuration: ipam.assign_ipv4 is "false" and ipam.assign_ipv6 is not "true": no address is wanted`))
	}
	return req, nil
}

// ipamResult has, for each address, the address under its block's mask, and a route of the same form, as Calico prints it.
func ipamResult(assigned []ipam.Assignment) *types100.Result {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, a := range assigned {
		n := ipNet(netip.PrefixFrom(a.Address, a.Block.Bits()))
		result.IPs = append(result.IPs, &types100.IPConfig{Address: n})
		result.Routes = append(result.Routes, &types.Route{Dst: n})
	}
	return result
}

// ipNet keeps the host bits, which netip.Prefix.Masked would clear.
func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func ipamDel(ctx context.Context, log *slog.Logger, args *skel.CmdArgs) error {
	r, err := parseRequest(args)
	if err != nil {
		return err
	}
	store, err := openStore(&r.conf, ipamPlugin)
	if err != nil {
		return err
	}
	unlock := lockHost(log, r.conf.IPAMLockFile)
	defer unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ipamTime)
	defer cancel()
	client := ipam.NewClient(store, time.Now)
	for _, handle := range []string{names.PodHandle(r.conf.Name, r.containerID), names.LegacyPodHandle(r.namespace, r.pod)} {
		freed, err := client.Release(ctx, handle)
		if err != nil {
			return err
		}
		log.Info("released", "handle", handle, "addresses", freed)
	}
	return nil
}

// lockHost keeps the plugins of one host from racing for the same block: without it they would be just as right, but try
// more often. So a lock that cannot be had is logged and done without, as by Calico.
func lockHost(log *slog.Logger, path string) (unlock func()) {
	if path == "" {
		path = defaultLockFile
	}
	f, err := flock(path)
	if err != nil {
		log.Warn("IPAM goes on without the host's lock", "err", err)
		return func() {}
	}
	return func() { _ = f.Close() }
}
