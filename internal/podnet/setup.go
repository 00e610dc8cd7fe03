package podnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/netlinkx"
)

const (
	// macTries at macInterval give whoever renames and renumbers new interfaces (systemd-udevd) time to lose interest.
	macTries    = 50
	macInterval = 100 * time.Millisecond

	// The address appears with the link's carrier, which the kernel may take a second to notice (net/core/link_watch.c);
	// Calico gives up after half of that.
	linkLocalTries    = 60
	linkLocalInterval = 50 * time.Millisecond

	// The pod's end keeps Ethernet's usual length; the node's end has no queue, as Calico's has none.
	podTxQueueLen  = 1000
	hostTxQueueLen = 0
)

var (
	// hostMAC is the address of the node's end of every pod's veth: the pod's cached neighbour entry stays right when the
	// node's end is made anew.
	hostMAC = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

	// hostLinkLocal is what SLAAC derives from hostMAC (RFC 4291, appendix A).
	hostLinkLocal = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")

	// gateway is the pod's IPv4 next hop. No interface has the address.
	gateway = netip.MustParseAddr("169.254.1.1")
)

// wiring is one pod in the middle of being wired.
type wiring struct {
	Config
	ns        *netlinkx.Namespace
	host, pod *netlinkx.Conn

	hostIndex, podIndex int
}

// Setup wires the pod to the node in whose namespace the calling process is. A link that has the host-side name already is
// removed first, together with its other end: it is what an earlier sandbox of the same pod left. On an error nothing that
// Setup made remains.
func Setup(ctx context.Context, c Config) (_ Result, err error) {
	if err := c.normalize(); err != nil {
		return Result{}, err
	}
	w := &wiring{Config: c}
	defer w.close()
	if err := w.open(); err != nil {
		return Result{}, err
	}
	if err := w.removeLeftover(); err != nil {
		return Result{}, err
	}
	if err := w.makeVeth(); err != nil {
		return Result{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.undo())
		}
	}()
	steps := []func(context.Context) error{w.settleHostMAC, w.hostUp, w.podUp, w.podIPv4, w.podIPv6, w.podParameters, w.hostRoutes}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return Result{}, err
		}
	}
	return w.result()
}

func (w *wiring) open() (err error) {
	if w.ns, err = netlinkx.OpenNamespace(w.Netns); err != nil {
		return err
	}
	if w.host, err = netlinkx.Open(); err != nil {
		return err
	}
	same, err := w.ns.Same(w.host.Namespace())
	if err != nil {
		return err
	}
	if same {
		return fmt.Errorf("netns: %s is the node's own network namespace, which a pod on the host network uses: such a pod is not to be wired", w.Netns)
	}
	w.pod, err = netlinkx.OpenAt(w.ns)
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

func (w *wiring) removeLeftover() error {
	old, err := w.host.LinkByName(w.HostVeth)
	if err == nil {
		w.Log.Info("removing a link left by an earlier sandbox of this pod", "link", old.Name, "index", old.Index)
		err = w.host.DeleteLink(old.Index)
	}
	if err != nil && !netlinkx.IsNotExist(err) {
		return fmt.Errorf("remove leftover host-side link: %w", err)
	}
	return nil
}

func (w *wiring) makeVeth() error {
	err := w.host.AddVeth(netlinkx.Veth{
		Name: w.HostVeth, HardwareAddr: hostMAC, TxQueueLen: hostTxQueueLen,
		PeerName: w.IfName, PeerNamespace: w.ns, PeerHardwareAddr: w.MAC, PeerTxQueueLen: podTxQueueLen,
		MTU: w.MTU, Queues: w.Queues,
	})
	if netlinkx.IsExist(err) {
		return fmt.Errorf("%w: %s may have an interface %s already; a plugin that ran before this one made it, or an earlier ADD was not followed by DEL",
			err, w.Netns, w.IfName)
	}
	if err != nil {
		return err
	}
	if err := w.findEnds(); err != nil {
		return errors.Join(err, w.undo())
	}
	return nil
}

func (w *wiring) findEnds() error {
	host, err := w.host.LinkByName(w.HostVeth)
	if err != nil {
		return err
	}
	w.hostIndex, w.podIndex = host.Index, host.PeerIndex
	return nil
}

// undo removes both ends; their addresses and routes go with them.
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

// settleHostMAC makes sure that the address given to the new link is still there: udev's link policy may set another. A
// link that won't take the address works for IPv4 with the one it has.
func (w *wiring) settleHostMAC(ctx context.Context) error {
	var last error
	for range macTries {
		link, err := w.host.LinkByIndex(w.hostIndex)
		if err != nil {
			return err
		}
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

func (w *wiring) hostUp(context.Context) error {
	if err := apply(w.Sysctl, w.Log, hostSettings(&w.Config)); err != nil {
		return fmt.Errorf("prepare %s: %w", w.HostVeth, err)
	}
	return w.host.SetUp(w.hostIndex)
}

func (w *wiring) podUp(context.Context) error {
	if err := w.podApply(podSettingsBeforeUp(&w.Config)); err != nil {
		return err
	}
	return w.pod.SetUp(w.podIndex)
}

func (w *wiring) podParameters(context.Context) error { return w.podApply(podSettings(&w.Config)) }

func (w *wiring) podApply(s []setting) error {
	if len(s) == 0 {
		return nil
	}
	if err := w.ns.Do(func() error { return apply(w.Sysctl, w.Log, s) }); err != nil {
		return fmt.Errorf("prepare pod's namespace: %w", err)
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

func (w *wiring) podIPv6(ctx context.Context) error {
	if !w.has(netlinkx.IPv6) {
		return nil
	}
	via, err := w.hostLinkLocalAddr(ctx)
	if err != nil {
		return err
	}
	return w.podFamily(netlinkx.IPv6, via)
}

// podFamily adds the routes and addresses of one family, in that order: what the pod sends from its first moment with an
// address on has somewhere to go.
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
		// Calico leaves it to accept_dad to make an IPv6 address usable, which the kernel then does some time later.
		if err := w.pod.AddUniqueAddr(w.podIndex, hostPrefix(a)); err != nil {
			return fmt.Errorf("in pod's namespace: %w", err)
		}
	}
	return nil
}

// hostLinkLocalAddr returns the link-local address of the node's end. An address that was derived from another MAC than
// the link now has goes away when the link is taken down and up; a kernel that makes addresses by another rule (RFC 7217)
// keeps its own, which serves as well.
func (w *wiring) hostLinkLocalAddr(ctx context.Context) (netip.Addr, error) {
	addr, err := w.waitLinkLocal(ctx)
	if err != nil || addr == hostLinkLocal {
		return addr, err
	}
	if err := errors.Join(w.host.SetDown(w.hostIndex), w.host.SetUp(w.hostIndex)); err != nil {
		return netip.Addr{}, err
	}
	if addr, err = w.waitLinkLocal(ctx); err == nil && addr != hostLinkLocal {
		w.Log.Warn("host-side link has another link-local address than Calico's", "link", w.HostVeth, "address", addr, "want", hostLinkLocal)
	}
	return addr, err
}

func (w *wiring) waitLinkLocal(ctx context.Context) (netip.Addr, error) {
	for range linkLocalTries {
		addrs, err := w.host.Addrs(w.hostIndex, netlinkx.IPv6)
		if err != nil {
			return netip.Addr{}, err
		}
		for _, a := range addrs {
			if a.Prefix.Addr().IsLinkLocalUnicast() {
				return a.Prefix.Addr(), nil
			}
		}
		if err := pause(ctx, linkLocalInterval); err != nil {
			return netip.Addr{}, fmt.Errorf("wait for link-local address of %s: %w", w.HostVeth, err)
		}
	}
	return netip.Addr{}, fmt.Errorf("link %s got no IPv6 link-local address in %v, which is the pod's IPv6 gateway: check net.ipv6.conf.%s.addr_gen_mode and disable_ipv6",
		w.HostVeth, linkLocalTries*linkLocalInterval, w.HostVeth)
}

func (w *wiring) result() (Result, error) {
	link, err := w.pod.LinkByIndex(w.podIndex)
	if err != nil {
		return Result{}, fmt.Errorf("in pod's namespace: %w", err)
	}
	return Result{HostVeth: w.HostVeth, MAC: link.HardwareAddr, MTU: link.MTU}, nil
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
