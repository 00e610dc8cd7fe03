package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
)

// check compares ADD's result with the kernel (link, addresses, routes and parameters) and with what the container
// holds. It names all differences. Additions of later plugins are ignored.
func check(ctx context.Context, c *call) error {
	s, err := c.open()
	if err != nil {
		return err
	}
	if err := checkNetns(s.netns); err != nil {
		return err
	}
	prev, err := s.prevResult()
	if err != nil {
		return err
	}
	if s.routes, err = s.conf.podRoutes(); err != nil {
		return err
	}
	drift := s.checkWiring(prev)
	held := s.checkHeld(ctx, prev)
	if drift != nil && !errors.Is(held, ipam.ErrNotHeld) {
		return drift // an unavailable datastore matters less
	}
	return errors.Join(drift, held)
}

// ipamCheck compares what the container holds with what an ADD has printed.
func ipamCheck(ctx context.Context, c *call) error {
	s, err := c.open()
	if err != nil {
		return err
	}
	prev, err := s.prevResult()
	if err != nil {
		return err
	}
	addrs, err := prev.addrs(s.ifName)
	if err != nil {
		return err
	}
	return (&inProcess{s}).check(ctx, addrs)
}

// printed is the result of an ADD, which CHECK gets back.
type printed struct{ *types100.Result }

// prevResult reads the result of ADD in any CNI version.
func (s *session) prevResult() (printed, error) {
	if err := version.ParsePrevResult(&s.conf.NetConf); err != nil {
		return printed{}, failure(types.ErrDecodingFailure, err)
	}
	if s.conf.PrevResult == nil {
		return printed{}, failure(types.ErrInvalidNetworkConfig,
			errors.New("network configuration: prevResult is missing: CHECK compares with the result of ADD"))
	}
	prev, err := types100.NewResultFromResult(s.conf.PrevResult)
	if err != nil {
		return printed{}, failure(types.ErrDecodingFailure, fmt.Errorf("prevResult: %w", err))
	}
	return printed{prev}, nil
}

// addrs returns the addresses of the container's interface. Other interfaces are a later plugin's.
func (p printed) addrs(ifName string) ([]netip.Addr, error) {
	own := types100.Result{}
	for _, ip := range p.IPs {
		if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(p.Interfaces) || p.Interfaces[*ip.Interface].Name == ifName {
			own.IPs = append(own.IPs, ip)
		}
	}
	if len(own.IPs) == 0 {
		return nil, failure(types.ErrInvalidNetworkConfig, fmt.Errorf("prevResult has no address of interface %s", ifName))
	}
	addrs, err := resultAddrs(&own)
	return addrs, failure(types.ErrInvalidNetworkConfig, err)
}

// expect sets in c the MTU and MAC address of the result: the configured MTU may have changed since. The result must
// name the node's end too.
func (p printed) expect(c *podnet.Config) error {
	named := false
	for _, i := range p.Interfaces {
		named = named || i.Sandbox == "" && i.Name == c.HostVeth
		if i.Sandbox == "" || i.Name != c.IfName {
			continue
		}
		c.MTU = i.Mtu
		mac, err := net.ParseMAC(i.Mac)
		if i.Mac != "" && err != nil {
			return failure(types.ErrInvalidNetworkConfig, fmt.Errorf("prevResult: mac of interface %s: %w", i.Name, err))
		}
		c.MAC = mac
	}
	if !named && len(p.Interfaces) > 0 {
		return fmt.Errorf(
			"prevResult has no interface %s, which is the node's end of this pod's link: it is of another pod, or of another plugin", c.HostVeth)
	}
	return nil
}

func (s *session) checkWiring(prev printed) error {
	addrs, err := prev.addrs(s.ifName)
	if err != nil {
		return err
	}
	c := s.podConfig(s.log, addrs)
	c.MTU = 0 // unless the result has one
	return errors.Join(prev.expect(&c), podnet.Check(c))
}

// checkHeld checks the addresses with the IPAM that assigned them.
func (s *session) checkHeld(ctx context.Context, prev printed) error {
	if s.conf.IPAM.Type != calicoIPAM {
		return (&delegated{s}).check(ctx)
	}
	addrs, err := prev.addrs(s.ifName)
	if err != nil {
		return err
	}
	return (&inProcess{s}).check(ctx, addrs)
}

// check compares addrs with what the container's handle holds. Addresses of the annotation ipAddrsNoIpam have no
// holder.
func (p *inProcess) check(ctx context.Context, addrs []netip.Addr) error {
	err := ipam.NewClient(p.store, time.Now).Holds(ctx, p.owner(), addrs)
	if !errors.Is(err, ipam.ErrNotHeld) || p.kube == nil || p.plain() {
		return err
	}
	w, readErr := p.endpoint().read(ctx, false)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	if want, requestErr := p.request(w); requestErr == nil && want.unmanaged != nil {
		return nil
	}
	return err
}

// check executes another IPAM plugin's CHECK.
func (d *delegated) check(ctx context.Context) error {
	return d.exec(ctx, "CHECK")
}
