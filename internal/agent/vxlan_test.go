package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// annotate changes an annotation of a Node; empty removes it.
func (r *rig) annotate(t *testing.T, node, key, value string) {
	t.Helper()
	n := &api.Node{Meta: api.Meta{Name: node}}
	errtest.Must(t, r.store.Get(t.Context(), n))
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	if n.Annotations[key] = value; value == "" {
		delete(n.Annotations, key)
	}
	errtest.Must(t, r.store.Update(t.Context(), n))
}

// device reports whether vxlan.calico is up and satisfies is.
func (r *rig) device(is func(netlinkx.Link) bool) func() bool {
	return func() bool {
		link, err := r.ns.Conn.LinkByName(vxlan.Device4) // it may be made anew just now
		return err == nil && link.Up && is(link)
	}
}

// forwards reports whether frames to a MAC go to the other node, and only there.
func (r *rig) forwards(_ *testing.T, mac vxlan.MAC) func() bool {
	return r.device(func(link netlinkx.Link) bool {
		have, err := r.ns.Conn.Forwarding(link.Index)
		want := netlinkx.Neighbour{Link: link.Index, Forward: true, Addr: addr("172.31.0.2"), MAC: mac, Permanent: true}
		return err == nil && slices.Equal(have, []netlinkx.Neighbour{want})
	})
}

// A pool stops using IPIP on a node that could not make tunl0. The node serves its pods at once: there is no device to
// keep.
func TestAgentLeavesWhatNeverStood(t *testing.T) {
	r := newRig(t)
	// This is like a kernel without IPIP, on any kernel. One with IPIP may have made tunl0.
	if _, err := r.ns.Conn.LinkByName(ipip.Device); err == nil {
		r.ns.Run(t, "ip", "link", "set", ipip.Device, "name", "elsewhere")
	}
	pool := &api.IPPool{Meta: api.Meta{Name: "leaves"}, Spec: api.IPPoolSpec{CIDR: "10.96.0.0/16", BlockSize: 26, IPIPMode: api.EncapAlways}}
	labstore.Make(t, r.store, pool)
	r.affinity(t, rigNode, "10.96.1.0/26", "rig-node-10-96-1-0-26")
	status, _ := r.agent(t, newPeers())
	named(t, status, ipip.Device)
	if status.Report().Ready {
		t.Fatal("ready without its tunnel")
	}
	r.update(t, pool, func() { pool.Spec.IPIPMode, pool.Spec.VXLANMode = api.EncapNever, api.EncapAlways })
	waittest.Until(t, soon, "ready", func() bool { return status.Report().Ready })
	if report := status.Report(); report.LastError != "" || len(report.Tunnels) != 1 || report.Tunnels[0].Kind != "VXLAN" {
		t.Errorf("%q, tunnels %+v", report.LastError, report.Tunnels)
	}
}

// Without IPIP in the kernel an agent names the command that helps; with IPIP it serves.
func TestAgentNeedsIPIP(t *testing.T) {
	r := newRig(t)
	labstore.Make(t, r.store,
		&api.IPPool{Meta: api.Meta{Name: "needs"}, Spec: api.IPPoolSpec{CIDR: "10.97.0.0/16", BlockSize: 26, IPIPMode: api.EncapAlways}})
	status, _ := r.agent(t, newPeers())
	if err := netnstest.IPIP(); errors.Is(err, ipip.ErrNoIPIP) {
		named(t, status, "run: kubectl patch "+labtest.Group(t).Resource("ippools")+" needs --type=merge")
	} else {
		waittest.Until(t, 2*soon, "ready", func() bool { return err == nil && status.Report().Ready })
	}
}

// VXLAN of an agent without BGP: a VTEP that appears, changes and goes, settings that change, and no writes in between.
func TestAgentKeepsVXLAN(t *testing.T) {
	r := newRig(t)
	r.configure = func(c *config.Node) { c.NoBGP = true }
	labstore.Make(t, r.store,
		&api.IPPool{Meta: api.Meta{Name: "vx"}, Spec: api.IPPoolSpec{CIDR: "10.95.0.0/16", BlockSize: 26, VXLANMode: api.EncapAlways}})
	r.affinity(t, rigNode, "10.95.1.0/26", "rig-node-10-95-1-0-26")
	r.affinity(t, rigOther, "10.95.2.0/26", "rig-other-10-95-2-0-26")
	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })

	self := &api.Node{Meta: api.Meta{Name: rigNode}}
	waittest.Until(t, soon, "the own end is announced", func() bool {
		errtest.Must(t, r.store.Get(t.Context(), self))
		end := self.Annotations[api.AnnotationIPv4VXLANAddr]
		addrs, err := r.ns.Conn.Addrs(r.ns.Link(t, vxlan.Device4).Index, netlinkx.IPv4)
		return err == nil && len(addrs) == 1 && addrs[0].Prefix.String() == end+"/32"
	})
	if r.has(t, "10.95.2.0/26")() {
		t.Errorf("a route to a node without an end: %s", r.routes(t))
	}
	if report := status.Report(); report.LastError != "" || strings.Contains(strings.Join(report.Problems, ""), rigOther) {
		t.Errorf("a node without an end is a problem: %q, %q", report.LastError, report.Problems)
	}

	r.annotate(t, rigOther, api.AnnotationIPv4VXLANAddr, "10.95.2.0")
	waittest.Until(t, soon, "the way to the other", r.has(t, "10.95.2.0/26 via 10.95.2.0 dev vxlan.calico onlink"))
	mac := vxlan.MACOf(rigOther, false)
	if have := r.ns.Run(t, "ip", "neigh", "show", "dev", vxlan.Device4); !strings.Contains(have,
		"10.95.2.0 lladdr "+mac.String()+" PERMANENT") {
		t.Errorf("the other's end is not known: %s", have)
	}
	if !r.forwards(t, mac)() {
		t.Error("no forwarding entry")
	}
	if mtu, err := os.ReadFile(filepath.Join(r.stateDir, mtuFile)); err != nil || strings.TrimSpace(string(mtu)) != "1450" {
		t.Errorf("pods' MTU %q, %v", mtu, err)
	}
	if known, err := os.ReadFile(filepath.Join(r.stateDir, nodeFile)); err != nil || string(known) != self.UID {
		t.Errorf("the Node whose addresses were made sure of is %q, %v, want %q", known, err, self.UID)
	}
	if rules := r.ns.Run(t, "nft", "list", "table", "inet", "tortie"); !strings.Contains(rules, "udp dport 4789") &&
		!strings.Contains(rules, "th dport 4789") {
		t.Errorf("the guard lets VXLAN in from anybody:\n%s", rules)
	}

	waittest.Until(t, 2*settleTime, "the start is over", func() bool { return !status.Report().Routes.Starting })
	changes := r.ns.Changes(t)
	passes := status.Report().LastPass
	r.annotate(t, rigOther, "other.example/wakes", "nobody")
	r.annotate(t, rigOther, api.AnnotationASNumber, "64512")
	waittest.Until(t, soon, "a pass", func() bool { return status.Report().LastPass.After(passes) })
	if n := changes(); n > 0 {
		t.Errorf("%d changes although all is as it should be", n)
	}

	r.annotate(t, rigOther, api.AnnotationVXLANMAC, "66:00:00:00:00:99")
	waittest.Until(t, soon, "the other's MAC, once it is believed", r.forwards(t, vxlan.MAC{0x66, 5: 0x99}))
	r.annotate(t, rigNode, api.AnnotationVXLANMAC, "66:00:00:00:00:11")
	waittest.Until(t, soon, "the own MAC", r.device(func(l netlinkx.Link) bool { return l.HardwareAddr.String() == "66:00:00:00:00:11" }))

	felix := &api.FelixConfiguration{Meta: api.Meta{Name: "node." + rigNode},
		Spec: api.FelixConfigurationSpec{VXLANPort: ptr(8472), VXLANVNI: ptr(7), VXLANMTU: ptr(1400)}}
	labstore.Make(t, r.store, felix)
	waittest.Until(t, soon, "another port, network and MTU",
		r.device(func(l netlinkx.Link) bool { return l.VXLAN.ID == 7 && l.VXLAN.Port == 8472 && l.MTU == 1400 }))
	waittest.Until(t, soon, "the route is back on the new device", r.has(t, "10.95.2.0/26 via 10.95.2.0 dev vxlan.calico onlink"))
	waittest.Until(t, soon, "the entries are", r.forwards(t, vxlan.MAC{0x66, 5: 0x99}))

	r.annotate(t, rigOther, api.AnnotationIPv4VXLANAddr, "nonsense")
	named(t, status, fmt.Sprintf("Node %s: annotation %s", rigOther, api.AnnotationIPv4VXLANAddr))
	waittest.Until(t, soon, "the way goes with the end", func() bool { return !r.has(t, "10.95.2.0/26")() })
	r.annotate(t, rigOther, api.AnnotationIPv4VXLANAddr, "10.95.2.1")
	waittest.Until(t, soon, "the way by the new end", r.has(t, "10.95.2.0/26 via 10.95.2.1 dev vxlan.calico onlink"))
}
