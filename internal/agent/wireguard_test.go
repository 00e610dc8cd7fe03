package agent

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// wireGuardRig returns a node of a cluster with WireGuard on, and another node with a key and a block.
func wireGuardRig(t *testing.T) (r *rig, felix *api.FelixConfiguration) {
	r = newRig(t)
	r.affinity(t, rigNode, "10.90.1.0/26", "rig-node-10-90-1-0-26")
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	r.annotate(t, rigOther, api.AnnotationWireGuardKey, wireguard.Key{2, 31: 1}.String())
	felix = &api.FelixConfiguration{Meta: api.Meta{Name: "node." + rigNode}, Spec: api.FelixConfigurationSpec{WireguardEnabled: ptr(true)}}
	labstore.Make(t, r.store, felix)
	return r, felix
}

// table returns WireGuard's routing table, and the rules that lead there.
func (r *rig) table(t *testing.T) string {
	return strings.Join(strings.Fields(r.ns.Run(t, "ip", "route", "show", "table", "all", "proto", "84")+r.ns.Run(t, "ip", "rule")), " ")
}

// moveWireGuard makes a pod with CAP_NET_ADMIN put a device of its own in the place of the node's, and returns its
// public key.
func (r *rig) moveWireGuard(t *testing.T) string {
	t.Helper()
	pod := netnstest.New(t)
	netnstest.Cable(t, r.ns, "x0", pod, "eth0")
	errtest.Must(t, pod.Conn.AddWireGuard("mine", 1440))
	link := pod.Link(t, "mine")
	errtest.Must(t, pod.Conn.SetWireGuardKey(link.Index, wireguard.Key{8: 7}))
	w, err := pod.Conn.WireGuard(link.Index)
	errtest.Must(t, err)
	pod.Swap(t, "mine", wireguard.Device4)
	return w.Public.String()
}

// WireGuard is turned on and off. Its key outlives the agent, and a device with a foreign key is made anew. On a kernel
// without WireGuard the node serves its pods, and names what is missing.
func TestAgentWireGuard(t *testing.T) {
	before := clearPatience
	clearPatience = time.Second
	t.Cleanup(func() { clearPatience = before })
	r, felix := wireGuardRig(t)
	status, stop := r.agent(t, newPeers())
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	waittest.Until(t, soon, "the way of the main table", r.has(t, toOther))
	self := &api.Node{Meta: api.Meta{Name: rigNode}}
	key := func() string {
		errtest.Must(t, r.store.Get(t.Context(), self))
		return self.Annotations[api.AnnotationWireGuardKey]
	}
	if err := netnstest.WireGuard(); errors.Is(err, wireguard.ErrNoWireGuard) {
		named(t, status, "modprobe wireguard")
		waittest.Until(t, soon, "no word of a device that cannot be", func() bool {
			report := status.Report()
			return len(report.Tunnels) == 0 && report.PodMTU == r.ns.Link(t, report.Interface).MTU && len(report.ProblemReasons) > 0
		})
		for text, reason := range status.Report().ProblemReasons {
			if strings.Contains(text, "modprobe wireguard") && reason != "NoWireGuard" {
				t.Errorf("%s: reason %q", text, reason)
			}
		}
		if key() != "" || strings.Contains(r.table(t), "wireguard.cali") {
			t.Errorf("key %q, routes %s", key(), r.table(t))
		}
	} else {
		waittest.Until(t, soon, "the key is announced", func() bool {
			w, err := r.ns.Conn.WireGuard(r.ns.Link(t, wireguard.Device4).Index)
			return err == nil && key() == w.Public.String() && len(w.Peers) == 1 && len(w.Peers[0].AllowedIPs) == 2
		})
		if tunnels := status.Report().Tunnels; len(tunnels) != 1 || tunnels[0].Unencrypted != 1 || tunnels[0].UnencryptedNodes[0] != rigOther {
			t.Errorf("nobody has answered: %+v", tunnels)
		}
		waittest.Until(t, 6*soon, "the way, though nobody answers",
			func() bool { return strings.Contains(r.table(t), "10.90.2.0/26 dev wireguard.cali table 1") })
		r.annotate(t, rigOther, api.AnnotationWireGuardKey, "")
		waittest.Until(t, 6*soon, "the node that is reached in the clear is named", func() bool {
			for text, reason := range status.Report().ProblemReasons {
				if reason == "NotEncrypted" && strings.Contains(text, "Node "+rigOther+":") {
					return true
				}
			}
			return false
		})
		before := key()
		stop()
		errtest.Must(t, os.RemoveAll(filepath.Join(r.stateDir, keysFile))) // as Felix leaves none
		status, _ = r.agent(t, newPeers())
		waittest.Until(t, 2*soon, "ready after a restart", func() bool { return status.Report().Ready })
		if w, err := r.ns.Conn.WireGuard(r.ns.Link(t, wireguard.Device4).Index); err != nil || w.Public.String() != before || key() != before {
			t.Errorf("the key was %s, is %s, announced is %s, %v", before, w.Public, key(), err)
		}
		theirs := r.moveWireGuard(t)
		waittest.Until(t, 2*soon, "a key of the node's own is announced", func() bool {
			w, err := r.ns.Conn.WireGuard(r.ns.Link(t, wireguard.Device4).Index)
			return err == nil && w.Public.String() != theirs && key() != before && key() == w.Public.String()
		})
	}
	if !strings.Contains(r.table(t), "99: not from all fwmark 0x200000/0x200000 lookup 1") {
		t.Errorf("rules %s", r.table(t))
	}
	r.update(t, felix, func() { felix.Spec.WireguardEnabled = ptr(false) })
	waittest.Until(t, 6*soon, "all is removed", func() bool {
		_, err := r.ns.Conn.LinkByName(wireguard.Device4)
		return err != nil && key() == "" && !strings.Contains(r.table(t), "0x200000") && !strings.Contains(r.table(t), "table 1 ")
	})
	if report := status.Report(); !report.Ready || report.LastError != "" {
		t.Errorf("%+v", report)
	}
}

// With encryption required nothing is sent in the clear: not to a node without a key, nor on a kernel without
// WireGuard, where the node takes no pods.
func TestAgentRequiresEncryption(t *testing.T) {
	r, felix := wireGuardRig(t)
	r.configure = func(c *config.Node) { c.RequireEncryption = true }
	r.annotate(t, rigOther, api.AnnotationWireGuardKey, "")
	seen, err := os.Create(filepath.Join(t.TempDir(), "seen"))
	errtest.Must(t, err)
	monitor := exec.CommandContext(t.Context(), "ip", "monitor", "route", "rule")
	monitor.Stdout = seen
	r.ns.Within(t, monitor.Start)
	waittest.Until(t, soon, "routes are monitored", func() bool {
		r.ns.Run(t, "ip", "route", "add", "blackhole", "192.0.2.1")
		r.ns.Run(t, "ip", "route", "del", "blackhole", "192.0.2.1")
		text, err := os.ReadFile(seen.Name())
		return err == nil && len(text) > 0
	})
	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 2*soon, "the way is closed", func() bool {
		table := r.table(t)
		return strings.Contains(table, "prohibit 10.90.0.0/16 table 1") && strings.Contains(table, "prohibit 10.90.2.0/26 table 1") &&
			strings.Contains(table, "throw 10.90.1.0/26 table 1") && strings.Contains(table, "lookup 1")
	})
	waittest.Until(t, soon, "the way of the main table", r.has(t, toOther))
	waittest.Until(t, soon, "and it came after the closed one and the rule that leads there", func() bool {
		data, err := os.ReadFile(seen.Name())
		text := string(data)
		open := strings.Index(text, "\n10.90.2.0/26 ")
		return err == nil && open > strings.Index(text, "prohibit 10.90.0.0/16") && open > strings.Index(text, "fwmark 0x200000") &&
			strings.Contains(text, "fwmark 0x200000")
	})
	if has := netnstest.WireGuard() == nil; !has {
		named(t, status, "modprobe wireguard")
		if status.Report().Ready {
			t.Error("takes pods whose packets nobody encrypts")
		}
	}
	r.update(t, felix, func() { felix.Spec.WireguardEnabled = ptr(false) })
	waittest.Until(t, 6*soon, "open and ready", func() bool { return status.Report().Ready && !strings.Contains(r.table(t), "table 1 ") })
}
