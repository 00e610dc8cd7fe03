package peering

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/api/selector"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
)

// form is a usable BGPPeer with all its references resolved.
type form struct {
	name string
	// The nodes that have the session: all if global, else the node by name, else the selected ones.
	global bool
	node   string
	nodes  selector.Selector
	// The peer, if addr is valid, with its AS number, and its port unless that is 0; else the nodes selected.
	addr   netip.Addr
	port   uint16
	asn    uint32
	peers  selector.Selector
	manual bool // peers that are nodes get no session in return
	via    netip.Addr
	options
	past Past // the objects that it was made of
}

// options are the options that both ends of a session share, if both are nodes.
type options struct {
	local       uint32 // AS number instead of the node's, for this end only; 0: the node's
	password    string
	ao          tcpao.Keys
	nextHop     bgp.NextHopMode
	keepOutside bool // keep the next hop, towards another AS
	unbound     bool // the kernel chooses the session's own address
	restart     time.Duration
	keepalive   time.Duration
	ownASN      int
	hops        int
	bfd         bfd.Config
	aggregation Aggregation // not for peers that are nodes
	rules       rules
}

// Bounds of the values that BGP and TCP can encode.
const (
	maxRestart   = 4095 * time.Second
	maxKeepalive = 65535 * time.Second / 3
	maxHops      = 255
)

// resolver makes a form from a BGPPeer.
type resolver struct {
	spec    *api.BGPPeerSpec
	secrets map[api.Place]Secret
	known   map[string]filter
	form    form
	fatal   []error // why it cannot be used
	pending bool    // a Secret is not read yet
	notes   []error // fields without effect
}

func (r *resolver) fail(format string, args ...any) {
	r.fatal = append(r.fatal, fmt.Errorf(format, args...))
}

func (r *resolver) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Errorf(format, args...))
}

// resolve reads a BGPPeer. Its form is usable if nothing is fatal or pending.
func resolve(p *api.BGPPeer, in *Input, known map[string]filter) *resolver {
	r := &resolver{spec: &p.Spec, secrets: in.Secrets, known: known, form: form{name: p.Name}}
	r.form.past.Peer = api.BGPPeer{Meta: api.Meta{Name: p.Name}, Spec: p.Spec}
	if p.Spec.LocalWorkloadSelector != "" {
		r.fail("spec.localWorkloadSelector: sessions with pods are not supported: remove the object, or leave it to Calico nodes")
		return r
	}
	r.nodes(in.Absent)
	r.peer()
	r.reach()
	r.numbers()
	r.timers()
	r.modes()
	r.onLink()
	r.password()
	r.filters()
	r.tcpAO(r.annotation(p, api.AnnotationTCPAO))
	r.bfd(r.annotation(p, api.AnnotationBFD))
	r.aggregate(r.annotation(p, api.AnnotationAggregate))
	return r
}

// annotation returns an annotation, empty if there is none, and keeps it in the form's past.
func (r *resolver) annotation(p *api.BGPPeer, key string) string {
	text := names.Annotation(&p.Meta, key)
	if kept := &r.form.past.Peer; text != "" {
		if kept.Annotations == nil {
			kept.Annotations = map[string]string{}
		}
		kept.Annotations[key] = text
	}
	return text
}

// aggregate reads which prefixes replace blocks.
func (r *resolver) aggregate(text string) {
	switch a := Aggregation(text); a {
	case "", ByPool, ByAdvertisement:
		r.form.aggregation = a
	default:
		r.fail("annotation %s %q: use %s or %s", api.AnnotationAggregate, text, ByPool, ByAdvertisement)
	}
}

// nodes reads which nodes have the session.
func (r *resolver) nodes(absent map[string]bool) {
	s := r.spec
	r.form.global = s.Node == "" && s.NodeSelector == ""
	if s.NodeSelector == "" {
		if r.form.node = s.Node; absent[s.Node] {
			r.note("spec.node %q: no Node has this name, so no node has the session: correct it, or delete the object", s.Node)
		}
		return
	}
	if s.Node != "" {
		r.note("spec.node %q has no effect beside spec.nodeSelector: remove one of them", s.Node)
	}
	r.form.nodes = r.selector("nodeSelector", s.NodeSelector)
}

func (r *resolver) selector(field, text string) selector.Selector {
	parsed, err := selector.Parse(text)
	if err != nil {
		r.fail("spec.%s: %w", field, err)
	}
	return parsed
}

// peer reads the peers.
func (r *resolver) peer() {
	s := r.spec
	switch {
	case s.PeerSelector != "":
		if s.PeerIP != "" {
			r.note("spec.peerIP %q has no effect beside spec.peerSelector: remove one of them", s.PeerIP)
		}
		r.form.peers = r.selector("peerSelector", s.PeerSelector)
	case s.PeerIP == "":
		r.fail("it has no peer: set spec.peerIP or spec.peerSelector")
	default:
		var err error
		if r.form.addr, r.form.port, err = parsePeer(s.PeerIP); err != nil {
			r.fail("spec.peerIP %q: %w", s.PeerIP, err)
		}
		if r.form.asn = s.ASNumber; s.ASNumber == 0 {
			r.fail("spec.asNumber is missing: set the AS number of %s", s.PeerIP)
		}
	}
}

// parsePeer reads an address and its port, 0 if there is none.
func parsePeer(text string) (netip.Addr, uint16, error) {
	addr, err := netip.ParseAddr(text)
	port := uint16(0)
	if err != nil {
		var both netip.AddrPort
		if both, err = netip.ParseAddrPort(text); err != nil {
			return netip.Addr{}, 0, errors.New("use an address, or one with a port, such as 10.0.0.1:179 or [fd00::1]:179")
		}
		if addr, port = both.Addr(), both.Port(); port == 0 {
			return netip.Addr{}, 0, errors.New("use a port from 1 to 65535, or none")
		}
	}
	return addr, port, checkPeer(addr)
}

// checkUnicast returns an error for an address that cannot be an end of a session.
func checkUnicast(a netip.Addr) error {
	if !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "" {
		return errors.New("use an address that packets are routed to: neither a link-local nor a loopback nor a group's one")
	}
	return nil
}

// reach reads the gateway to the peer.
func (r *resolver) reach() {
	text := r.spec.ReachableBy
	if text == "" {
		return
	}
	via, err := netip.ParseAddr(text)
	switch {
	case r.form.addr.Zone() != "":
		r.note("spec.reachableBy %q has no effect: %s is on the link itself: remove it", text, r.spec.PeerIP)
	case err != nil || checkUnicast(via) != nil && !via.IsLinkLocalUnicast() || via.Is4In6() || via.Zone() != "":
		r.fail("spec.reachableBy %q: use the address of a gateway", text)
	case r.form.addr.IsValid() && via.Is4() != r.form.addr.Is4():
		r.fail("spec.reachableBy %q: use an address of the same family as spec.peerIP %q", text, r.spec.PeerIP)
	case via == r.form.addr:
		r.note("spec.reachableBy %q is the peer itself: remove it", text)
	default:
		r.form.via = via
	}
}

// numbers reads the fields that are numbers.
func (r *resolver) numbers() {
	s, o := r.spec, &r.form.options
	if s.LocalASNumber != nil {
		o.local = *s.LocalASNumber
	}
	if n := s.NumAllowedLocalASNumbers; n != nil {
		if o.ownASN = min(max(*n, 0), bgp.MaxOwnASN); o.ownASN != *n {
			r.note("spec.numAllowedLocalASNumbers %d: use 0 to %d: %d is in force", *n, bgp.MaxOwnASN, o.ownASN)
		}
	}
	if n := s.TTLSecurity; n != nil {
		if o.hops = *n; *n < 0 || *n > maxHops {
			r.fail("spec.ttlSecurity %d: use the number of hops to the peer, 1 to %d, or 0", *n, maxHops)
		}
	}
}

func (r *resolver) timers() {
	r.form.restart = r.duration("maxRestartTime", r.spec.MaxRestartTime, maxRestart)
	r.form.keepalive = r.duration("keepaliveTime", r.spec.KeepaliveTime, maxKeepalive)
}

// duration reads whole seconds; 0 if there is no text.
func (r *resolver) duration(field, text string, most time.Duration) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > most {
		r.fail("spec.%s %q: use a duration from 1s to %s, such as 120s", field, text, most)
		return 0
	}
	return d.Truncate(time.Second)
}

// modes reads the enumerations.
func (r *resolver) modes() {
	s, o := r.spec, &r.form.options
	switch s.NextHopMode {
	case "Auto":
	case "":
		o.keepOutside = s.KeepOriginalNextHop
	case "Self":
		o.nextHop = bgp.NextHopSelf
	case "Keep":
		o.nextHop = bgp.NextHopKeep
	default:
		r.fail("spec.nextHopMode %q: use Auto, Self or Keep", s.NextHopMode)
	}
	if s.NextHopMode != "" && s.KeepOriginalNextHop {
		r.note("spec.keepOriginalNextHop has no effect beside spec.nextHopMode: remove it")
	}
	switch s.SourceAddress {
	case "", "UseNodeIP":
	case "None":
		o.unbound = true
	default:
		r.fail("spec.sourceAddress %q: use UseNodeIP or None", s.SourceAddress)
	}
	switch s.ReversePeering {
	case "", "Auto":
	case "Manual":
		r.form.manual = true
	default:
		r.fail("spec.reversePeering %q: use Auto or Manual", s.ReversePeering)
	}
}

// bfd reads the BFD settings. The key is the session's password.
func (r *resolver) bfd(text string) {
	if text == "" {
		return
	}
	c, err := bfd.Parse(text)
	if err == nil && !r.pending && len(r.fatal) == 0 {
		c, err = c.WithKey(r.form.password)
	}
	if err != nil {
		r.fail("annotation %s %q: %w", api.AnnotationBFD, text, err)
	}
	r.form.bfd = c
}

func (r *resolver) password() {
	if place, ok := r.spec.Password.Place(); ok {
		r.form.password = r.secret("spec.password", place)
	}
}

// secret returns the secret at a place; empty if it is not known.
func (r *resolver) secret(field string, place api.Place) string {
	secret, ok := r.secrets[place]
	switch {
	case !ok || secret.Pending:
		r.pending = true
	case secret.Err != nil:
		r.fail("%s: %w", field, secret.Err)
	}
	return secret.Text
}

// tcpAO reads the TCP-AO keys, which exclude a password.
func (r *resolver) tcpAO(text string) {
	if text == "" {
		return
	}
	field := fmt.Sprintf("annotation %s %q", api.AnnotationTCPAO, text)
	place, ok := api.TCPAOPlace(text)
	if !ok {
		r.fail("%s: use SECRET/KEY, names of a Secret and of a key of it", field)
		return
	}
	if _, both := r.spec.Password.Place(); both {
		r.fail("%s: there is spec.password, too, and TCP takes one of both: remove one", field)
	}
	secret := r.secret(field, place)
	if secret == "" {
		return
	}
	keys, err := tcpao.Parse(secret)
	switch {
	case err != nil:
		r.fail("%s: %w", field, err)
	case r.spec.PeerSelector != "" && !keys.Symmetric():
		r.fail("%s: nodes on both ends have these keys: give each the same send and receive ID", field)
	}
	r.form.ao = keys
}
