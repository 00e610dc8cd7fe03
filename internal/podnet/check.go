package podnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/netlinkx"
)

// Check compares a pod's wiring with what Setup would have made of c and returns everything that is missing or different,
// or nil. A zero MTU, nil MAC or zero Queues is not compared. It changes nothing.
func Check(c Config) error {
	if err := c.normalize(); err != nil {
		return err
	}
	w := &wiring{Config: c}
	defer w.close()
	if err := w.open(); err != nil {
		return err
	}
	host, err := w.host.LinkByName(w.HostVeth)
	if err != nil {
		return err
	}
	pod, err := w.pod.LinkByName(w.IfName)
	if err != nil {
		return fmt.Errorf("in pod's namespace: %w", err)
	}
	w.hostIndex, w.podIndex = host.Index, pod.Index

	errs := w.checkLinks(host, pod)
	errs = append(errs, w.checkAddresses()...)
	errs = append(errs, w.checkRoutes()...)
	errs = append(errs, verify(w.Sysctl, hostSettings(&w.Config))...)
	err = w.ns.Do(func() error { return errors.Join(verify(w.Sysctl, podSettings(&w.Config))...) })
	return errors.Join(append(errs, err)...)
}

func (w *wiring) checkLinks(host, pod netlinkx.Link) (errs []error) {
	if host.PeerIndex != pod.Index || pod.PeerIndex != host.Index || host.Kind != "veth" {
		errs = append(errs, fmt.Errorf("%s is not the other end of the pod's %s", host.Name, pod.Name))
	}
	for _, l := range []netlinkx.Link{host, pod} {
		if !l.Up {
			errs = append(errs, fmt.Errorf("%s is down", l.Name))
		}
		if w.MTU != 0 && l.MTU != w.MTU {
			errs = append(errs, fmt.Errorf("mtu of %s is %d, want %d", l.Name, l.MTU, w.MTU))
		}
	}
	if w.MAC != nil && !slices.Equal(pod.HardwareAddr, w.MAC) {
		errs = append(errs, fmt.Errorf("address of the pod's %s is %s, want %s", pod.Name, pod.HardwareAddr, w.MAC))
	}
	return errs
}

func (w *wiring) checkAddresses() (errs []error) {
	have, err := w.pod.Addrs(w.podIndex, netlinkx.FamilyAll)
	if err != nil {
		return []error{fmt.Errorf("in pod's namespace: %w", err)}
	}
	for _, a := range w.Addresses {
		if !slices.ContainsFunc(have, func(h netlinkx.Addr) bool { return h.Prefix == hostPrefix(a) }) {
			errs = append(errs, fmt.Errorf("the pod's %s lacks address %s", w.IfName, hostPrefix(a)))
		}
	}
	return errs
}

// checkRoutes looks for the pod's routes by destination and interface: the IPv6 gateway is whatever address the node's end
// had.
func (w *wiring) checkRoutes() (errs []error) {
	hostRoutes, err := w.host.Routes(netlinkx.RouteFilter{Dev: w.hostIndex})
	if err != nil {
		return []error{err}
	}
	podRoutes, err := w.pod.Routes(netlinkx.RouteFilter{Dev: w.podIndex})
	if err != nil {
		return []error{fmt.Errorf("in pod's namespace: %w", err)}
	}
	has := func(routes []netlinkx.Route, dst netip.Prefix) bool {
		return slices.ContainsFunc(routes, func(r netlinkx.Route) bool { return r.Dst == dst })
	}
	for _, a := range w.Addresses {
		if !has(hostRoutes, hostPrefix(a)) {
			errs = append(errs, fmt.Errorf("the node lacks the route to %s through %s", hostPrefix(a), w.HostVeth))
		}
	}
	for _, f := range []netlinkx.Family{netlinkx.IPv4, netlinkx.IPv6} {
		if !w.has(f) {
			continue
		}
		for _, dst := range w.routesOf(f) {
			if !has(podRoutes, dst) {
				errs = append(errs, fmt.Errorf("the pod lacks the route to %s through %s", dst, w.IfName))
			}
		}
	}
	return errs
}
