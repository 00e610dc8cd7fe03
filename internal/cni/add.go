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

	"github.com/tortie-net/tortie/internal/journal"
	"github.com/tortie-net/tortie/internal/podnet"
)

// undoTime bounds the clean-up after a failed ADD, whatever is left of the verb's own time.
const undoTime = 20 * time.Second

// add gives a pod its address and its link. After a failure nothing is left of it.
func add(ctx context.Context, log *slog.Logger, args *skel.CmdArgs) (err error) {
	s, err := open(log, args, calico)
	if err != nil {
		return err
	}
	if err := checkNetns(s.netns); err != nil {
		return err
	}
	if s.mtu, err = podMTU(&s.conf, defaultMTUFile); err != nil {
		return err
	}
	if err := journal.DefaultDir.Withdraw(ctx, s.handle()); err != nil {
		return err
	}
	wanted := ask(func() (wish, error) {
		w, err := s.endpoint().read(ctx)
		if err != nil {
			return wish{}, err
		}
		return s.wish(w)
	})
	assigned, err := s.addressing().add(ctx, wanted)
	if err != nil {
		return err
	}
	wired := false
	defer func() {
		if err != nil {
			err = s.undo(ctx, wired, err)
		}
	}()
	addrs, err := resultAddrs(assigned)
	if err != nil {
		return err
	}
	link, err := podnet.Setup(ctx, s.podConfig(log, addrs))
	if err != nil {
		return fmt.Errorf("wire the pod: %w", err)
	}
	wired = true
	if err := s.endpoint().note(ctx, link, addrs); err != nil {
		return fmt.Errorf("note the address on the pod: %w", err)
	}
	log.Info("wired", "link", link.HostVeth, "addresses", addrs, "mtu", link.MTU)
	return types.PrintResult(result(s.request, link, addrs, assigned), s.conf.CNIVersion)
}

// undo takes back what a failed ADD has done, and returns why it failed. The link, if one was made, goes first: an address
// must not be free while a pod has it.
func (s *session) undo(ctx context.Context, wired bool, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var err error
	if wired {
		err = podnet.Teardown(ctx, s.netns, s.ifName, s.hostVeth())
	}
	if err == nil {
		err = s.addressing().del(ctx, cleared)
	}
	if err == nil {
		return cause
	}
	// The code is the cause's, so the other error takes part as text only.
	return fmt.Errorf("%w; what it had done is left for DEL, since undoing it failed: %v", cause, err)
}

func resultAddrs(res *types100.Result) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, ip := range res.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("IPAM plugin: its result has the address %q", ip.Address.String())
		}
		addrs = append(addrs, a.Unmap())
	}
	if len(addrs) == 0 {
		return nil, errors.New("IPAM plugin: its result has no address")
	}
	return addrs, nil
}

func (r *request) hostVeth() string {
	return podnet.HostVethName(podnet.DefaultVethPrefix, r.namespace, r.pod)
}

func (r *request) podConfig(log *slog.Logger, addrs []netip.Addr) podnet.Config {
	return podnet.Config{
		Netns:             r.netns,
		IfName:            r.ifName,
		HostVeth:          r.hostVeth(),
		Addresses:         addrs,
		MTU:               r.mtu,
		Queues:            r.conf.NumQueues,
		AllowIPForwarding: r.conf.ContainerSettings.AllowIPForwarding,
		Log:               log,
	}
}

// result is what ADD prints. Calico's forms: the host's link by name only, addresses as /32 or /128 of the second
// interface, no gateway, and the IPAM plugin's routes.
func result(r *request, link podnet.Result, addrs []netip.Addr, assigned *types100.Result) *types100.Result {
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: link.HostVeth},
			{Name: r.ifName, Mac: link.MAC.String(), Mtu: link.MTU, Sandbox: r.netns},
		},
		Routes: assigned.Routes,
		DNS:    assigned.DNS,
	}
	for _, a := range addrs {
		res.IPs = append(res.IPs, &types100.IPConfig{
			Interface: types100.Int(1),
			Address:   net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		})
	}
	return res
}
