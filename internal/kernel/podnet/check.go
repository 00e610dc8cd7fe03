package podnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// Check compares a pod's interface with the result of Setup for c and returns everything that is missing or different,
// or nil. It does not compare a zero MTU, a nil MAC, or the queues. It ignores routes and addresses that are not in c:
// a plugin that ran after this one may have added them. It changes nothing.
func Check(c Config) error {
	if err := c.normalize(); err != nil {
		return err
	}
	w := &wiring{Config: c}
	defer w.close()
	if err := w.open(); err != nil {
		return err
	}
	var err error
	if w.pod, err = netlinkx.OpenAt(w.ns); err != nil {
		return err
	}
	host, err := w.host.LinkByName(w.HostVeth)
	if err != nil {
		return fmt.Errorf("the node's end of the pod's link: %w", err)
	}
	pod, err := w.pod.LinkByName(w.IfName)
	if err != nil {
		return fmt.Errorf("in pod's namespace: %w", err)
	}
	w.hostIndex, w.podIndex = host.Index, pod.Index

	errs := w.checkLinks(host, pod)
	errs = append(errs, w.checkAddresses()...)
	errs = append(errs, w.checkHostRoutes()...)
	errs = append(errs, w.checkPodRoutes()...)
	errs = append(errs, verify(w.Sysctl, hostSettings(&w.Config))...)
	err = w.ns.Do(func() error { return errors.Join(verify(w.Sysctl, podSettings(&w.Config))...) })
	return errors.Join(append(errs, err)...)
}

func (w *wiring) checkLinks(host, pod netlinkx.Link) (errs []error) {
	if host.PeerIndex != pod.Index || pod.PeerIndex != host.Index || !isPair(host) {
		errs = append(errs, fmt.Errorf("%s is not the other end of the pod's %s", host.Name, pod.Name))
	}
	if w.isAnothers(host) {
		errs = append(errs, fmt.Errorf("%s is another container's", describe(host)))
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
		at := slices.IndexFunc(have, func(h netlinkx.Addr) bool { return h.Prefix == hostPrefix(a) })
		switch {
		case at < 0:
			errs = append(errs, fmt.Errorf("the pod's %s lacks address %s", w.IfName, hostPrefix(a)))
		case have[at].Tentative:
			errs = append(errs,
				fmt.Errorf("address %s of the pod's %s is tentative or a duplicate: the kernel does not use it", hostPrefix(a), w.IfName))
		}
	}
	return errs
}

// checkHostRoutes looks for the node's routes to the pod, by whatever link.
func (w *wiring) checkHostRoutes() (errs []error) {
	routes, err := w.host.Routes(netlinkx.RouteFilter{})
	if err != nil {
		return []error{err}
	}
	for _, a := range w.Addresses {
		lack := fmt.Errorf("the node lacks the route to %s through %s", hostPrefix(a), w.HostVeth)
		for _, r := range routes {
			if r.Dst != hostPrefix(a) {
				continue
			}
			if r.Dev == w.hostIndex && !r.Via.IsValid() {
				lack = nil
				break
			}
			lack = fmt.Errorf("the node's route to %s does not lead through %s: %s", hostPrefix(a), w.HostVeth, r)
		}
		if lack != nil {
			errs = append(errs, lack)
		}
	}
	return errs
}

// checkPodRoutes looks for the pod's routes and their next hop. Calico's IPv6 next hop is whatever link-local address
// the node's end had.
func (w *wiring) checkPodRoutes() (errs []error) {
	routes, err := w.pod.Routes(netlinkx.RouteFilter{Dev: w.podIndex})
	if err != nil {
		return []error{fmt.Errorf("in pod's namespace: %w", err)}
	}
	want := func(dst netip.Prefix, right func(netlinkx.Route) bool) {
		at := slices.IndexFunc(routes, func(r netlinkx.Route) bool { return r.Dst == dst })
		switch {
		case at < 0:
			errs = append(errs, fmt.Errorf("the pod lacks the route to %s through %s", dst, w.IfName))
		case !right(routes[at]):
			errs = append(errs, fmt.Errorf("the pod's route to %s does not lead to the node's end of %s: %s", dst, w.IfName, routes[at]))
		}
	}
	if w.has(netlinkx.IPv4) {
		want(hostPrefix(gateway), func(r netlinkx.Route) bool { return !r.Via.IsValid() })
		for _, dst := range w.routesOf(netlinkx.IPv4) {
			want(dst, func(r netlinkx.Route) bool { return r.Via == gateway })
		}
	}
	if w.has(netlinkx.IPv6) {
		for _, dst := range w.routesOf(netlinkx.IPv6) {
			want(dst, func(r netlinkx.Route) bool { return r.Via.IsLinkLocalUnicast() })
		}
	}
	return errs
}
