package meshtest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// SessionsSince returns nil if the agent has this number of sessions, all of them established after since.
func (n *Node) SessionsSince(since time.Time, peers int) error {
	r, err := n.Status()
	if err != nil {
		return err
	}
	for _, p := range r.Peers {
		if p.State != "Established" || p.Since.Before(since) {
			return fmt.Errorf("%s: the session with %s is %s since %v, %v after the change: %s", n.Name, p.Address, p.State, p.Since,
				p.Since.Sub(since), p.LastError)
		}
	}
	if len(r.Peers) != peers {
		return fmt.Errorf("%s has %d peers, not %d", n.Name, len(r.Peers), peers)
	}
	return nil
}

// SettledWithoutPeers returns nil when no session is established and the agent has applied everything else.
func (n *Node) SettledWithoutPeers() error {
	r, err := n.Status()
	if err != nil {
		return err
	}
	for _, p := range r.Peers {
		if p.State == "Established" {
			return fmt.Errorf("%s: the session with %s is up", n.Name, p.Address)
		}
	}
	if r.LastError != "" || len(r.Peers) == 0 {
		return fmt.Errorf("%s: %d peers, %s", n.Name, len(r.Peers), r.LastError)
	}
	return nil
}

// Annotate sets an annotation of the Node; nil removes it.
func (n *Node) Annotate(t testing.TB, key string, text *string) {
	t.Helper()
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{key: text}}}
	errtest.Must(t, n.Store.PatchStatus(t.Context(), &api.Node{Meta: api.Meta{Name: n.Name}}, patch, false))
}

// Annotated returns nil if the Node has an annotation with that value.
func (n *Node) Annotated(t testing.TB, key, want string) error {
	obj := &api.Node{Meta: api.Meta{Name: n.Name}}
	if err := n.Store.Get(t.Context(), obj); err != nil {
		return err
	}
	if have := obj.Annotations[key]; have != want {
		return fmt.Errorf("%s: annotation %s is %q, want %q", n.Name, key, have, want)
	}
	return nil
}

// Try is Run for a command that may fail.
func (n *Node) Try(name string, args ...string) (text string, err error) {
	err = n.Do(func() error {
		out, err := exec.Command(name, args...).CombinedOutput()
		text = string(out)
		return err
	})
	return text, err
}

// AssignBorrowed writes a block with an affinity to owner in which a pod on borrower has an address.
func (c *Cluster) AssignBorrowed(t testing.TB, cidr string, owner *Node, ordinal int, borrower *Node) {
	t.Helper()
	first, handle, affinity := 0, "mesh", "host:"+owner.Name
	b := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(netip.MustParsePrefix(cidr))}, Spec: api.IPAMBlockSpec{
		CIDR: cidr, Affinity: &affinity, Allocations: make([]*int, 64), Unallocated: []int{}, SequenceNumberForAllocation: map[string]uint64{},
		Attributes: []api.AllocationAttribute{{HandleID: &handle, Secondary: map[string]string{"node": borrower.Name}}},
	}}
	b.Spec.Allocations[ordinal] = &first
	c.Create(t, b)
}

// NewNodeWithPod adds a node with a pod to a subnet. Address, name and block are derived from number.
func (c *Cluster) NewNodeWithPod(t testing.TB, subnet, number int) (*Node, *Pod) {
	t.Helper()
	n := c.NewNode(t, fmt.Sprintf("node-%d", number), subnet, number)
	n.Claim(t, fmt.Sprintf("10.90.%d.0/26", number))
	addrs := []string{fmt.Sprintf("10.90.%d.5", number)}
	if c.Dual {
		n.Claim(t, fmt.Sprintf("fd90::%x:0/122", number))
		addrs = append(addrs, fmt.Sprintf("fd90::%x:5", number))
	}
	return n, n.NewPod(t, addrs...)
}

// Counters returns the drop counters of the node's kernel.
func (n *Node) Counters() string {
	var all strings.Builder
	for _, args := range [][]string{
		{"cat", "/proc/self/net/snmp"}, {"cat", "/proc/self/net/stat/nf_conntrack"}, {"ip", "-s", "link"}, {"ip", "-s", "neigh"}, {"ip", "route"},
		{"nft", "list", "table", "inet", "tortie"},
	} {
		text, err := n.Try(args[0], args[1:]...)
		fmt.Fprintf(&all, "%s (%v)\n%s", strings.Join(args, " "), err, text)
	}
	return all.String()
}

// Condition sets a condition of the Node, as a kubelet or a controller does.
func (n *Node) Condition(t testing.TB, kind, status string) {
	t.Helper()
	patch := kubernetes.Patch{Status: map[string]any{"conditions": []api.NodeCondition{{Type: kind, Status: status, Reason: "Test"}}}}
	errtest.Must(t, n.Store.PatchStatus(t.Context(), &api.Node{Meta: api.Meta{Name: n.Name}}, patch, false))
}

// Events returns the Events about an object that is in no namespace.
func (c *Cluster) Events(t testing.TB, kind, name string) (all []events.Event) {
	t.Helper()
	client, err := rest.HTTPClientFor(c.Admin)
	errtest.Must(t, err)
	response, err := client.Get(c.Admin.Host + "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D" + name)
	errtest.Must(t, err)
	defer response.Body.Close()
	var list struct{ Items []events.Event }
	errtest.Must(t, json.NewDecoder(response.Body).Decode(&list))
	return slices.DeleteFunc(list.Items, func(e events.Event) bool { return e.InvolvedObject.Kind != kind })
}

// HasEvent returns nil if there is an Event with a reason about an object, from a node's agent, and with the text in
// its message.
func (c *Cluster) HasEvent(t testing.TB, kind, name, reason string, from *Node, text string) error {
	t.Helper()
	var seen []string
	for _, e := range c.Events(t, kind, name) {
		if e.Reason == reason && e.Source.Host == from.Name && strings.Contains(e.Message, text) {
			return nil
		}
		seen = append(seen, fmt.Sprintf("%s of %s: %s", e.Reason, e.Source.Host, e.Message))
	}
	return fmt.Errorf("%s %s has no Event %s of %s with %q, but %q", kind, name, reason, from.Name, text, seen)
}
