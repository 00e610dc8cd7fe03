package podnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

const (
	// macTries at macInterval are the time for systemd-udevd, which renames and renumbers new interfaces, to finish.
	macTries    = 50
	macInterval = 100 * time.Millisecond

	// settleTries at settleInterval are much more than the kernel needs to activate a new address.
	settleTries    = 200
	settleInterval = 500 * time.Microsecond

	// The pod's end has Ethernet's usual length; the node's end has no queue, like Calico's.
	podTxQueueLen  = 1000
	hostTxQueueLen = 0
)

var (
	// hostMAC is the address of the node's end of every pod's veth: the pod's neighbour entry stays right when the node's
	// end is made anew.
	hostMAC = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

	// hostLinkLocal is the address that SLAAC derives from hostMAC (RFC 4291, appendix A): the pod's IPv6 next hop.
	hostLinkLocal = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")

	// gateway is the pod's IPv4 next hop. No interface has the address.
	gateway = netip.MustParseAddr("169.254.1.1")
)

// wiring is the state of one Setup or Check.
type wiring struct {
	Config
	ns        *netlinkx.Namespace
	host, pod *netlinkx.Conn

	hostIndex, podIndex int
	podLink             netlinkx.Link // once both ends are up
}

// Setup connects the pod to the node, from a process in the node's namespace. An existing link with the host-side name
// is removed, with its other end, if it belongs to the same container or to a dead sandbox: see stale. The error names
// one of a live sandbox. After an error nothing that Setup made remains.
//
// When Setup returns, the pod can be reached at all its addresses.
func Setup(ctx context.Context, c Config) (_ Result, err error) {
	if err := c.normalize(); err != nil {
		return Result{}, err
	}
	w := &wiring{Config: c}
	defer w.close()
	if err := w.open(); err != nil {
		return Result{}, err
	}
	if err := w.makePair(); err != nil {
		return Result{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.undo())
		}
	}()
	steps := []func(context.Context) error{w.settleHostMAC, w.podUp, w.hostUp, w.lookAtPod, w.podIPv4, w.podIPv6, w.hostRoutes, w.noteSources,
		w.noteFloating, w.settle}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return Result{}, err
		}
	}
	return Result{HostVeth: w.HostVeth, MAC: w.podLink.HardwareAddr, MTU: w.podLink.MTU}, nil
}

func (w *wiring) open() (err error) {
	if w.ns, err = netlinkx.OpenNamespace(w.Netns); err != nil {
		return err
	}
	if w.host, err = netlinkx.Open(); err != nil {
		return err
	}
	return notTheNodes(w.ns, w.host.Namespace(), w.Netns)
}

// notTheNodes returns an error if ns is the node's own namespace.
func notTheNodes(ns, node *netlinkx.Namespace, path string) error {
	same, err := ns.Same(node)
	if err == nil && same {
		err = fmt.Errorf(
			"netns: %s is the node's own network namespace, which a pod on the host network uses: such a pod gets no interface", path)
	}
	return err
}

func (w *wiring) close() {
	for _, c := range []*netlinkx.Conn{w.host, w.pod} {
		if c != nil {
			c.Close()
		}
	}
	if w.ns != nil {
		w.ns.Close()
	}
}

// makePair makes the link, in place of one that takeOver removes.
func (w *wiring) makePair() error {
	err := w.addPair()
	if netlinkx.IsExist(err) {
		old, findErr := w.host.LinkByName(w.HostVeth)
		if findErr == nil {
			if err := w.takeOver(old); err != nil {
				return err
			}
			err = w.addPair()
		}
	}
	if netlinkx.IsExist(err) {
		return fmt.Errorf(
			"%w: %s may have an interface %s already; a plugin that ran before this one made it, or an earlier ADD was not followed by DEL",
			err, w.Netns, w.IfName)
	}
	return err
}

func (w *wiring) addPair() error {
	pair := netlinkx.Veth{
		Name: w.HostVeth, HardwareAddr: hostMAC, TxQueueLen: hostTxQueueLen,
		PeerName: w.IfName, PeerNamespace: w.ns, PeerHardwareAddr: w.MAC, PeerTxQueueLen: podTxQueueLen,
		MTU: w.MTU, Queues: w.Queues,
	}
	if !w.Netkit {
		return w.host.AddVeth(pair)
	}
	err := w.host.AddNetkit(pair)
	if netlinkx.IsUnsupported(err) {
		w.Log.Info("this kernel has no netkit links (Linux 6.7, CONFIG_NETKIT): the pod gets a veth", "link", w.HostVeth)
		err = w.host.AddVeth(pair)
	}
	return err
}

// undo removes both ends, and with them their addresses and routes.
func (w *wiring) undo() error {
	link, err := w.host.LinkByName(w.HostVeth)
	if err == nil {
		err = w.host.DeleteLink(link.Index)
	}
	if err != nil && !netlinkx.IsNotExist(err) {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}

// settleHostMAC looks up the new link, and sets its MAC again if udev's link policy has changed it. A link works with
// another MAC, too.
func (w *wiring) settleHostMAC(ctx context.Context) error {
	var last error
	for range macTries {
		link, err := w.host.LinkByName(w.HostVeth)
		if err != nil {
			return err
		}
		w.hostIndex, w.podIndex = link.Index, link.PeerIndex
		if slices.Equal(link.HardwareAddr, hostMAC) {
			return nil
		}
		last = w.host.SetHardwareAddr(w.hostIndex, hostMAC)
		if err := pause(ctx, macInterval); err != nil {
			return fmt.Errorf("set address %s of %s: %w", hostMAC, w.HostVeth, err)
		}
	}
	w.Log.Warn("host-side link keeps another address than Calico's", "link", w.HostVeth, "want", hostMAC.String(), "error", last)
	return nil
}

// podUp enters the pod's namespace once, to set its parameters and open a socket, and brings the pod's end up.
func (w *wiring) podUp(context.Context) error {
	err := w.ns.Do(func() (err error) {
		if err := apply(w.Sysctl, w.Log, podSettings(&w.Config)); err != nil {
			return err
		}
		w.pod, err = netlinkx.Open()
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare pod's namespace: %w", err)
	}
	return w.pod.SetUp(w.podIndex)
}

// hostUp brings the node's end up after the pod's: an end can send at once only if the other is up already.
func (w *wiring) hostUp(context.Context) error {
	if err := apply(w.Sysctl, w.Log, hostSettings(&w.Config)); err != nil {
		return fmt.Errorf("prepare %s: %w", w.HostVeth, err)
	}
	if w.Alias == "" {
		return w.host.SetUp(w.hostIndex)
	}
	return w.host.SetUpWithAlias(netlinkx.Link{Index: w.hostIndex, Name: w.HostVeth}, w.Alias)
}

// lookAtPod reads the pod's MAC address and MTU for the result. The request also activates the pod's end for sending
// (rtnl_getlink, Linux 6.8), which the kernel otherwise does some microseconds later.
func (w *wiring) lookAtPod(context.Context) (err error) {
	if w.podLink, err = w.pod.LinkByIndex(w.podIndex); err != nil {
		return fmt.Errorf("in pod's namespace: %w", err)
	}
	return nil
}

func (w *wiring) podIPv4(context.Context) error {
	if !w.has(netlinkx.IPv4) {
		return nil
	}
	toGateway := netlinkx.Route{Dst: hostPrefix(gateway), Dev: w.podIndex, Scope: netlinkx.ScopeLink}
	if err := w.pod.AddRoute(toGateway); err != nil {
		return fmt.Errorf("in pod's namespace: %w", err)
	}
	return w.podFamily(netlinkx.IPv4, gateway)
}

func (w *wiring) podIPv6(context.Context) error {
	if !w.has(netlinkx.IPv6) {
		return nil
	}
	// The kernel makes this address too, but some time later, and another one depending on addr_gen_mode.
	err := w.host.AddUniqueAddr(w.hostIndex, netip.PrefixFrom(hostLinkLocal, 64))
	if err != nil && !netlinkx.IsExist(err) {
		return fmt.Errorf("the pod's IPv6 gateway: %w", err)
	}
	return w.podFamily(netlinkx.IPv6, hostLinkLocal)
}

// settle waits until both ends answer to their new IPv6 addresses. The kernel joins their multicast groups and adds
// their local routes some microseconds after it has acknowledged the address (addrconf_dad_work), and a neighbour
// solicitation that is lost before is repeated only after a second. A timeout is no error: the address will work later.
func (w *wiring) settle(ctx context.Context) error {
	if !w.has(netlinkx.IPv6) {
		return nil
	}
	waiting := func() (bool, error) {
		for _, a := range w.Addresses {
			if a.Is4() {
				continue // at once
			}
			if ready, err := w.pod.Delivers(w.podIndex, a); err != nil || !ready {
				return true, err
			}
		}
		ready, err := w.host.Delivers(w.hostIndex, hostLinkLocal)
		return !ready, err
	}
	for range settleTries {
		if more, err := waiting(); err == nil && !more {
			return nil
		}
		if err := pause(ctx, settleInterval); err != nil {
			return fmt.Errorf("wait for addresses of %s: %w", w.HostVeth, err)
		}
	}
	w.Log.Warn("the kernel is slow to use the pod's IPv6 address", "link", w.HostVeth, "waited", settleTries*settleInterval)
	return nil
}

// podFamily adds the routes and addresses of one family, in that order: as soon as the pod has an address, its packets
// have a route.
func (w *wiring) podFamily(f netlinkx.Family, via netip.Addr) error {
	for _, dst := range w.routesOf(f) {
		if err := w.pod.AddRoute(netlinkx.Route{Dst: dst, Via: via, Dev: w.podIndex}); err != nil {
			return fmt.Errorf("in pod's namespace: %w", err)
		}
	}
	for _, a := range w.Addresses {
		if netlinkx.FamilyOf(a) != f {
			continue
		}
		// Calico only sets accept_dad, with which the kernel activates an IPv6 address once the link has settled.
		if err := w.pod.AddUniqueAddr(w.podIndex, hostPrefix(a)); err != nil {
			return fmt.Errorf("in pod's namespace: %w", err)
		}
	}
	return nil
}

// pause waits, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
