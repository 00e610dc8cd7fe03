package policytest

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// Uplink is the host's link to everything but its pods.
const Uplink = "uplink"

// Link returns the name of the host's link to the i-th generated pod.
func Link(i int) string { return fmt.Sprintf("cali%d", i) }

// Rig is a node: a namespace that forwards between the links of MaxPods pods and an uplink, each of which ends in a
// namespace of its own. These ends answer nothing: received packets are only recorded. One goroutine may send packets
// while another receives.
type Rig struct {
	Host *netnstest.NS
	ends map[string]*end
	// host are raw sockets that receive packets to the host; sending send packets from the host, by family.
	host    []int
	sending map[bool]int // by whether the family is IPv4
	next    atomic.Uint64
}

// end is the far end of a link.
type end struct {
	fd, index int
	mac, host net.HardwareAddr
}

// NewRig builds a node with the addresses of a generated cluster's first node. It is removed with the test.
func NewRig(t testing.TB) *Rig {
	t.Helper()
	needtest.Root(t, "SO_RCVBUFFORCE")
	r := &Rig{Host: netnstest.New(t), ends: map[string]*end{}, sending: map[bool]int{}}
	r.Host.Within(t, func() error {
		for _, key := range []sysctl.Key{{"net", "ipv4", "ip_forward"}, {"net", "ipv6", "conf", "all", "forwarding"}} {
			if err := sysctl.DefaultRoot.Set(key, "1"); err != nil {
				return err
			}
		}
		for _, conf := range []string{"all", "default"} {
			if err := sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "conf", conf, "rp_filter"}, "0"); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range MaxPods {
		r.Cable(t, Link(i), byte(i))
		v4, v6 := PodAddress(i)
		r.Neighbours(t, Link(i), v4, v6)
	}
	r.Cable(t, Uplink, 0xff)
	r.openHost(t)
	r.addresses(t)
	r.awaitLinks(t)
	return r
}

// awaitLinks waits until packets pass each link, both ways: the kernel passes none for up to a second after a link came
// up.
func (r *Rig) awaitLinks(t testing.TB) {
	t.Helper()
	host := netip.MustParseAddr("172.16.0.1")
	for i := range MaxPods {
		a, _ := PodAddress(i)
		r.route(t, netlinkx.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: r.Host.Link(t, Link(i)).Index, Scope: netlinkx.ScopeLink})
		r.AwaitLink(t, Link(i), Packet{From: host, To: a, Protocol: Other})
	}
	r.AwaitLink(t, Uplink, Packet{From: host, To: netip.MustParseAddr("192.0.2.1"), Protocol: Other})
}

// AwaitLink waits until a packet from the host passes a link, and its answer.
func (r *Rig) AwaitLink(t testing.TB, link string, p Packet) {
	t.Helper()
	back, came := Packet{From: p.To, To: p.From, Protocol: p.Protocol}, map[uint64]string{}
	waittest.Until(t, 10*time.Second, "a packet passes "+link, func() bool {
		there, err := r.Send("", p)
		here, err2 := r.Send(link, back)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		r.Arrivals(came)
		_, ok := came[there]
		_, ok2 := came[here]
		return ok && ok2
	})
}

// addresses sets the host's own addresses and its routes by the uplink.
func (r *Rig) addresses(t testing.TB) {
	r.Host.Addr(t, "lo", "172.16.0.1/32")
	r.Host.Addr(t, "lo", "fd01::1/128")
	for gateway, all := range map[string]string{"169.254.0.1": "0.0.0.0/0", "fe80::1": "::/0"} {
		a := netip.MustParseAddr(gateway)
		r.Neighbours(t, Uplink, a)
		r.route(t, netlinkx.Route{Dst: netip.MustParsePrefix(all), Via: a, Dev: r.Host.Link(t, Uplink).Index, Onlink: true})
	}
}

func (r *Rig) route(t testing.TB, route netlinkx.Route) {
	t.Helper()
	if err := r.Host.Conn.ReplaceRoute(route); err != nil {
		t.Fatal(err)
	}
}

// Neighbours adds permanent neighbour entries for addresses behind a link, so that packets do not wait for resolution.
func (r *Rig) Neighbours(t testing.TB, link string, addresses ...netip.Addr) {
	t.Helper()
	var entries []netlinkx.Neighbour
	for _, a := range addresses {
		entries = append(entries, netlinkx.Neighbour{Link: r.Host.Link(t, link).Index, Addr: a, MAC: [6]byte(r.ends[link].mac), Permanent: true})
	}
	for _, err := range r.Host.Conn.ReplaceNeighbours(entries) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Cable adds a link with a unique name and number.
func (r *Rig) Cable(t testing.TB, link string, n byte) {
	t.Helper()
	e := &end{host: net.HardwareAddr{2, 0, 0, 0, 1, n}, mac: net.HardwareAddr{2, 0, 0, 0, 2, n}}
	far := netnstest.New(t)
	err := r.Host.Conn.AddVeth(netlinkx.Veth{
		Name: link, HardwareAddr: e.host, TxQueueLen: 1000, PeerName: "eth0", PeerNamespace: far.Namespace,
		PeerHardwareAddr: e.mac, PeerTxQueueLen: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	e.index = far.Up(t, "eth0").Index
	r.Host.Up(t, link)
	far.Within(t, func() (err error) {
		all := int(htons(unix.ETH_P_ALL))
		e.fd, err = socket(t, unix.AF_PACKET, all)
		return err
	})
	if err := unix.SetsockoptInt(e.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		t.Fatal(err)
	}
	r.ends[link] = e
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// socket opens a raw, non-blocking socket with a large receive buffer. It is closed with the test.
func socket(t testing.TB, family, protocol int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return 0, err
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
}

func (r *Rig) openHost(t testing.TB) {
	t.Helper()
	r.Host.Within(t, func() error {
		for family, protocols := range map[int][]int{
			unix.AF_INET:  {ICMP, TCP, UDP, SCTP, Other, Other + 1, unix.IPPROTO_RAW},
			unix.AF_INET6: {ICMPv6, TCP, UDP, SCTP, Other, Other + 1, unix.IPPROTO_RAW},
		} {
			for _, protocol := range protocols {
				fd, err := socket(t, family, protocol)
				if err != nil {
					return fmt.Errorf("raw socket of family %d, protocol %d: %w", family, protocol, err)
				}
				if protocol == unix.IPPROTO_RAW {
					r.sending[family == unix.AF_INET] = fd
				} else {
					r.host = append(r.host, fd)
				}
			}
		}
		return nil
	})
}

// Own routes the cluster's pods on Node to the rig's links, and everything else to the uplink.
func (r *Rig) Own(t testing.TB, c *Cluster) {
	t.Helper()
	var gone []netlinkx.Route
	for i := range MaxPods {
		v4, v6 := PodAddress(i)
		for _, a := range []netip.Addr{v4, v6} {
			route := netlinkx.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: r.Host.Link(t, Link(i)).Index, Scope: netlinkx.ScopeLink}
			if pod := c.PodAt(a); pod != nil && pod.Spec.NodeName == Node {
				r.route(t, route)
			} else {
				gone = append(gone, route)
			}
		}
	}
	for _, err := range r.Host.Conn.DeleteRoutes(gone) {
		if err != nil && !netlinkx.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// Place returns the rig's link for an address, or "" for the host itself.
func (c *Cluster) Place(a netip.Addr) string {
	if isNodes(&c.Nodes[0], a) {
		return ""
	}
	pod := c.PodAt(a)
	if pod == nil || pod.Spec.NodeName != Node {
		return Uplink
	}
	for i := range MaxPods {
		if v4, v6 := PodAddress(i); a == v4 || a == v6 {
			return Link(i)
		}
	}
	return Uplink
}

// Send sends a packet from behind a link, or from the host itself, and returns the number by which Arrivals identifies
// it.
func (r *Rig) Send(link string, p Packet) (uint64, error) {
	number := r.next.Add(1)
	kind, packet := encode(p, number)
	return number, r.put(link, p, kind, packet)
}

// Again sends the packet with that number once more, in the same connection.
func (r *Rig) Again(link string, p Packet, number uint64) error {
	kind, packet := encode(p, number)
	return r.put(link, p, kind, packet)
}

// Answer sends the answer of a UDP packet's destination, from behind its link.
func (r *Rig) Answer(link string, p Packet, number uint64) (uint64, error) {
	answer := r.next.Add(1)
	from, to := netip.AddrPortFrom(p.To, p.Port), netip.AddrPortFrom(p.From, p.PortOf(number))
	kind, packet := netnstest.Datagram(from, to, mark(answer))
	return answer, r.put(link, Packet{From: p.To, To: p.From}, kind, packet)
}

// Complain sends from behind a link, or from the host itself, an ICMP error about the packet with that number, to its
// sender.
func (r *Rig) Complain(link string, from netip.Addr, c Complaint, about Packet, number uint64) (uint64, error) {
	complaint := r.next.Add(1)
	_, quoted := encode(about, number)
	kind, packet := c.encode(from, about.From, quoted, complaint)
	return complaint, r.put(link, Packet{From: from, To: about.From, Protocol: ICMP}, kind, packet)
}

// Carry sends a packet inside another one, from behind a link.
func (r *Rig) Carry(link string, p Packet, wrap func(inner []byte) (kind uint16, outer []byte)) (uint64, error) {
	number := r.next.Add(1)
	_, inner := encode(p, number)
	kind, outer := wrap(inner)
	return number, r.put(link, p, kind, outer)
}

func (r *Rig) put(link string, p Packet, kind uint16, packet []byte) (err error) {
	if e := r.ends[link]; e != nil {
		err = unix.Sendto(e.fd, netnstest.Frame(e.mac, e.host, kind, packet), 0, &unix.SockaddrLinklayer{Ifindex: e.index})
	} else if p.To.Is4() {
		err = unix.Sendto(r.sending[true], packet, 0, &unix.SockaddrInet4{Addr: p.To.As4()})
	} else {
		err = unix.Sendto(r.sending[false], packet, 0, &unix.SockaddrInet6{Addr: p.To.As16()})
	}
	if err != nil {
		return fmt.Errorf("send %s on %q: %w", p, link, err)
	}
	return nil
}

// Arrivals records in to where each packet came out since the last call, by its number.
func (r *Rig) Arrivals(to map[uint64]string) {
	r.Receive(func(a Arrival) { to[a.Number] = a.Place })
}

// Arrival is a packet that came out.
type Arrival struct {
	Number uint64
	Place  string     // a link, or empty for the host itself
	Source netip.Addr // its source address then; none for IPv6 at the host
}

// Receive visits each packet that came out since the last call.
func (r *Rig) Receive(visit func(Arrival)) {
	const ethernet = 14
	buf := make([]byte, 2048)
	drain := func(fd int, place string, header int) {
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return // nothing more, as the socket never waits
			}
			if number, ok := decodeNumber(buf[:n]); ok {
				visit(Arrival{number, place, sourceOf(buf[header:n])})
			}
		}
	}
	for link, e := range r.ends {
		drain(e.fd, link, ethernet)
	}
	for _, fd := range r.host {
		drain(fd, "", 0)
	}
}

// Await is Arrivals until all the given packets came, or for ten seconds, as machines may be busy. It then waits a
// moment for others.
func (r *Rig) Await(to map[uint64]string, numbers []uint64) {
	for tick, end := time.Tick(200*time.Microsecond), time.Now().Add(10*time.Second); time.Now().Before(end); <-tick {
		r.Arrivals(to)
		if !slices.ContainsFunc(numbers, func(n uint64) bool { _, ok := to[n]; return !ok }) {
			break
		}
	}
	time.Sleep(10 * time.Millisecond) //nolint:forbidigo // a packet that must not come has no event
	r.Arrivals(to)
}

// Forget deletes all connections from connection tracking.
func (r *Rig) Forget(t testing.TB) {
	t.Helper()
	const ctnetlink, ctDelete = 1, 2 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
	r.Host.Within(t, func() error {
		s, err := nlmsg.Open(unix.NETLINK_NETFILTER, time.Minute)
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Execute(nlmsg.Netfilter(ctnetlink, ctDelete, unix.NLM_F_ACK, unix.AF_UNSPEC, nil), nil)
	})
}
