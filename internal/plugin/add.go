package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/plugin/journal"
)

// undoTime bounds the clean-up after a failed ADD, whatever is left of the verb's own time.
const undoTime = 20 * time.Second

// add connects a container: it assigns addresses and makes the link, or joins a container that has both to a further
// network.
func add(ctx context.Context, c *call) error {
	s, err := c.open()
	if err != nil {
		return err
	}
	if err := checkNetns(s.netns); err != nil {
		return err
	}
	if err := s.settle(); err != nil {
		return err
	}
	if s.plain() && s.conf.FeatureControl.IPAddrsNoIPAM {
		return failure(types.ErrInvalidNetworkConfig, errors.New(
			"network configuration: feature_control.ip_addrs_no_ipam true: the annotation is a pod's, and CNI_ARGS name none: remove the key"))
	}
	if err := journal.DefaultDir.Withdraw(ctx, s.handle()); err != nil {
		return err
	}
	res, err := s.join(ctx)
	if res == nil && err == nil {
		res, err = s.attach(ctx)
	}
	if err != nil {
		return err
	}
	return types.PrintResult(res, s.conf.CNIVersion)
}

// errNotPlain: the pod has annotations that the agent had not seen.
var errNotPlain = errors.New("the pod has annotations that were not read")

// attach connects the container. If the pod was annotated after the agent had seen it, the attempt is undone, the pod
// is read, and a second attempt is made.
func (s *session) attach(ctx context.Context) (*types100.Result, error) {
	told := s.toldOfPod()
	if told {
		s.kube.Connect() // the first request comes with the host's lock held
	}
	res, err := s.try(ctx, told)
	if err == errNotPlain { //nolint:errorlint // wrapped, it was not undone
		s.log.Info("reading the pod: it was annotated after the agent had seen it")
		res, err = s.try(ctx, false)
	}
	return res, err
}

// try is one attempt of attach; told is for endpoint.read. A failed attempt is undone.
func (s *session) try(ctx context.Context, told bool) (_ *types100.Result, err error) {
	var w *workload
	wanted := ask(func() (request, error) {
		var err error
		if w, err = s.endpoint().read(ctx, told); err != nil {
			return request{}, err
		}
		return s.request(w)
	})
	if err := awaitGates(ctx, s.conf.ReadinessGates, gatePace); err != nil {
		return nil, err
	}
	assigned, err := s.addressing().add(ctx, wanted)
	if err != nil {
		return nil, s.unlessAnnotated(ctx, told, err)
	}
	wired, giveBack := false, nothing
	defer func() {
		if err != nil {
			err = s.undo(ctx, wired, err, giveBack)
		}
	}()
	wiring, err := s.wiring(wanted, assigned)
	if err != nil {
		return nil, err
	}
	uid := s.podUIDOf(&w.pod)
	kernel, giveBack, err := s.close(uid)
	if err != nil {
		return nil, err
	}
	link, err := podnet.Setup(ctx, wiring)
	if err != nil {
		return nil, fmt.Errorf("wire the pod: %w", err)
	}
	wired = true
	if err := s.endpoint().note(ctx, w, link, wiring.Addresses); err != nil {
		return nil, fmt.Errorf("note the address on the pod: %w", err)
	}
	if told && !api.PlainPod(w.pod.Annotations) {
		return nil, errNotPlain
	}
	s.awaitPolicy(ctx, kernel, uid)
	s.log.Info("pod network configured", "link", link.HostVeth, "addresses", wiring.Addresses, "mtu", link.MTU)
	return result(s, link, wiring.Addresses, assigned), nil
}

// unlessAnnotated returns cause, why no address was assigned, or errNotPlain if the pod was annotated after the agent
// had seen it: its annotations may allow one.
func (s *session) unlessAnnotated(ctx context.Context, told bool, cause error) error {
	if !told {
		return cause
	}
	pod := (&podEndpoint{s}).name()
	if err := s.kube.Get(ctx, pod); err != nil || api.PlainPod(pod.Annotations) {
		return cause
	}
	return errNotPlain
}

// settle determines MTU and routes of the link, from the configuration and the agent's MTU file.
func (s *session) settle() (err error) {
	if s.mtu, err = podMTU(&s.conf, defaultMTUFile); err != nil {
		return err
	}
	s.routes, err = s.conf.podRoutes()
	return err
}

// wiring returns the podnet.Config for the container and its assigned addresses.
func (s *session) wiring(wanted func() (request, error), assigned *types100.Result) (podnet.Config, error) {
	want, err := wanted()
	if err != nil {
		return podnet.Config{}, err
	}
	addrs, err := resultAddrs(assigned)
	if err != nil {
		return podnet.Config{}, err
	}
	c := s.podConfig(s.log, addrs)
	c.MAC, c.Sources = want.mac, want.sources
	if s.floats() {
		c.Floating = want.floating
	}
	return c, s.checkFloating(&want, addrs)
}

// nothing is the giveBack for a link that no other pod had.
func nothing() error { return nil }

// undo reverts a failed ADD and returns its cause. The link, if one was made, is removed first: an address must not be
// free while a pod has it. Then giveBack returns the link's name to the pod that had it.
func (s *session) undo(ctx context.Context, wired bool, cause error, giveBack func() error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var err error
	if wired {
		_, err = s.removeInterface(ctx)
	} else {
		err = s.checkNoInterface()
	}
	if err == nil {
		if err := giveBack(); err != nil {
			s.log.Warn("the link stays closed for this pod, and for any other whose name gives the same link", "err", err)
		}
		s.tryClear(ctx)
		err = s.addressing().del(ctx, cleared)
	}
	if err == nil || errors.Is(err, errHasInterface) {
		return cause
	}
	// The code is the cause's, so the other error takes part as text only.
	return fmt.Errorf("%w; what it had done is left for DEL, since undoing it failed: %s", cause, err.Error())
}

// tryClear clears the addresses that this ADD, even if its write seemed to fail, or an earlier one has noted. If it
// cannot, DEL does.
func (s *session) tryClear(ctx context.Context) {
	if err := s.endpoint().clear(ctx); err != nil {
		s.log.Warn("cannot clear the pod's address annotations, left to DEL", "err", err)
	}
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

// hostVeth returns the name of the link's end on the node. Without a pod it is made from the container ID.
func (s *session) hostVeth() string {
	if s.plain() {
		return podnet.DefaultVethPrefix + s.containerID[:min(len(s.containerID), 11)]
	}
	return podnet.HostVethName(s.conf.vethPrefix(), s.namespace, s.pod)
}

func (s *session) podConfig(log *slog.Logger, addrs []netip.Addr) podnet.Config {
	return podnet.Config{
		Netns:             s.netns,
		IfName:            s.ifName,
		HostVeth:          s.hostVeth(),
		Alias:             podnet.Alias(s.handle(), s.ifName),
		Netkit:            s.conf.DeviceType == deviceNetkit,
		Addresses:         addrs,
		MTU:               s.mtu,
		Queues:            s.conf.NumQueues,
		Routes:            s.routes,
		AllowIPForwarding: s.conf.ContainerSettings.AllowIPForwarding,
		Log:               log,
	}
}

// result returns what ADD prints, in Calico's form: the host's link by name only, addresses as /32 or /128 of the
// second interface, no gateway, and the IPAM plugin's routes.
func result(r *session, link podnet.Result, addrs []netip.Addr, assigned *types100.Result) *types100.Result {
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
