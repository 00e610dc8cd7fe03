package mesh

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// between returns a node's session with another.
func between(n, other *meshtest.Node) (nodestatus.Peer, error) {
	r, err := n.Status()
	if err != nil {
		return nodestatus.Peer{}, err
	}
	for _, p := range r.Peers {
		if p.Address == other.Prefix.Addr().String() {
			return p, nil
		}
	}
	return nodestatus.Peer{}, fmt.Errorf("%s has no session with %s", n.Name, other.Name)
}

// by returns nil if both ends have their session from an object, or from the mesh if object is empty, established after since.
func by(object string, since time.Time, a, b *meshtest.Node) error {
	for _, ends := range [][2]*meshtest.Node{{a, b}, {b, a}} {
		p, err := between(ends[0], ends[1])
		if err == nil && (p.Object != object || p.State != "Established" || p.Since.Before(since)) {
			err = fmt.Errorf("%s: its session with %s is %s since %v, by %q: %s", ends[0].Name, ends[1].Name, p.State, p.Since, p.Source, p.LastError)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// untouched returns a function that fails the test if a session was reset since.
func untouched(t *testing.T, a, b *meshtest.Node) func(after string) {
	t.Helper()
	// An agent closes an HTTP connection after 5 s without a request, which may hit the test's request on a loaded machine.
	answered := func() (p nodestatus.Peer) {
		t.Helper()
		meshtest.Eventually(t, func() (err error) { p, err = between(a, b); return err })
		return p
	}
	was := answered()
	if was.State != "Established" {
		t.Fatalf("%+v", was)
	}
	return func(after string) {
		t.Helper()
		if is := answered(); is.State != was.State || !is.Since.Equal(was.Since) {
			t.Errorf("after %s the session of %s with %s is %s since %v, and was since %v", after, a.Name, b.Name, is.State, is.Since, was.Since)
		}
	}
}

// reports waits until a node reports a problem that contains all parts.
func reports(t *testing.T, n *meshtest.Node, parts ...string) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		r, err := n.Status()
		if err != nil {
			return err
		}
		for _, problem := range r.Problems {
			missing := false
			for _, part := range parts {
				missing = missing || !strings.Contains(problem, part)
			}
			if !missing {
				return nil
			}
		}
		return fmt.Errorf("%s reports %q, want a problem with %q", n.Name, r.Problems, parts)
	})
}

// A BGPPeer, its Secret and its BGPFilter are created, changed, made invalid and deleted: each change takes effect soon, an invalid object
// leaves the last valid state, and no other session is reset.
func TestBGPObjects(t *testing.T) {
	t.Parallel()
	cluster := meshtest.NewCluster(t)
	cluster.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	a, _ := cluster.NewNodeWithPod(t, 0, 10)
	b, _ := cluster.NewNodeWithPod(t, 0, 11)
	c, _ := cluster.NewNodeWithPod(t, 0, 12)
	meshtest.Start(t, a, b, c)
	meshtest.Settle(t, a, b, c)
	stays := []func(string){untouched(t, a, b), untouched(t, b, c)}
	others := func(after string) {
		t.Helper()
		for _, check := range stays {
			check(after)
		}
	}
	core, err := kubernetes.NewForConfig(cluster.Admin)
	errtest.Must(t, err)
	secrets := core.CoreV1().Secrets("kube-system")
	cluster.GrantSecret(t, "special")

	peer := &api.BGPPeer{Meta: api.Meta{Name: "special"}, Spec: api.BGPPeerSpec{
		Node: a.Name, PeerIP: c.Prefix.Addr().String(), ASNumber: 64512,
		Password: &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "special", Key: "rr"}},
	}}
	cluster.Create(t, peer)
	reports(t, a, "BGPPeer special: spec.password: ", "Secret kube-system/special: the Secret does not exist", "there is no session until then")
	if err := by("", time.Time{}, a, c); err != nil {
		t.Error(err)
	}

	put := func(password string) {
		t.Helper()
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "special"}, StringData: map[string]string{"rr": password}}
		if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	took(t, "a Secret that was missing", func() { put("one") }, func(since time.Time) error { return by("special", since, a, c) })
	others("the peer's creation")

	same := untouched(t, a, c)
	errtest.Must(t, secrets.Delete(t.Context(), "special", metav1.DeleteOptions{}))
	reports(t, a, "BGPPeer special: spec.password: ", "what it was before stays in force")
	reports(t, c, "BGPPeer special: spec.password: ", "what it was before stays in force")
	put("one")
	meshtest.Eventually(t, func() error { return quiet(a, c) })
	same("the Secret's absence")

	filter := &api.BGPFilter{Meta: api.Meta{Name: "special"}, Spec: api.BGPFilterSpec{
		ImportV4: []api.BGPFilterRule{{Action: "Reject", CIDR: "10.90.12.0/24", MatchOperator: "In"}},
	}}
	peer.Spec.Filters = []string{"special"}
	update(t, cluster, peer)
	reports(t, a, "BGPPeer special: spec.filters: BGPFilter special does not exist", "what it was before stays in force")
	took(t, "a filter", func() { cluster.Create(t, filter) }, func(time.Time) error { return refuses(a, c, 1) })
	filter.Spec.ImportV4[0].Action = "Accept"
	took(t, "a filter's change", func() { update(t, cluster, filter) }, func(time.Time) error { return refuses(a, c, 0) })
	same("changes of the filter")
	others("changes of the filter")

	// An agent that restarts while the filter is missing uses what the earlier one persisted.
	cluster.Remove(t, filter)
	reports(t, a, "BGPPeer special: spec.filters: BGPFilter special does not exist", "what it was before stays in force")
	meshtest.Eventually(t, func() error {
		text, err := os.ReadFile(filepath.Join(a.Dir, "run/tortie/world.json"))
		if err == nil && !strings.Contains(string(text), `"past":[{"peer":{"metadata":{"name":"special"`) {
			err = fmt.Errorf("no persisted state of the peer")
		}
		return err
	})
	a.Signal(t, syscall.SIGKILL)
	took(t, "an agent's start", func() { a.Start(t, meshtest.Build) }, func(since time.Time) error { return by("special", since, a, c) })
	reports(t, a, "BGPPeer special: spec.filters: BGPFilter special does not exist", "what it was before stays in force")
	stays = stays[1:]

	took(t, "a peer's removal", func() { cluster.Remove(t, peer) }, func(since time.Time) error { return by("", since, a, c) })
	meshtest.Eventually(t, func() error { return quiet(a, c) })
	others("all of it")
	meshtest.Settle(t, a, b, c)
}

// The listen address and the cluster ID of an agent change at run time, and no other session is reset.
func TestBGPOfOneNode(t *testing.T) {
	t.Parallel()
	cluster := meshtest.NewCluster(t)
	cluster.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	a, _ := cluster.NewNodeWithPod(t, 0, 10)
	b, _ := cluster.NewNodeWithPod(t, 0, 11)
	c, _ := cluster.NewNodeWithPod(t, 0, 12)
	meshtest.Start(t, a, b, c)
	meshtest.Settle(t, a, b, c)
	other := untouched(t, a, b)
	listens := func(at string) error {
		if text := c.Run(t, "ss", "-Hltn"); !strings.Contains(text, " "+at+" ") {
			return fmt.Errorf("%s does not listen at %s: %s", c.Name, at, text)
		}
		return nil
	}
	own := &api.BGPConfiguration{Meta: api.Meta{Name: "node." + c.Name}, Spec: api.BGPConfigurationSpec{ListenPort: 1790}}
	took(t, "a port of one node", func() { cluster.Create(t, own) }, func(since time.Time) error {
		if p, err := between(a, c); err != nil || p.Port != 1790 {
			return fmt.Errorf("%+v, %w", p, err)
		}
		return errors.Join(listens(c.Prefix.Addr().String()+":1790"), by("", since, a, c), by("", since, b, c))
	})
	all := untouched(t, a, c)
	everywhere := &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.BGPConfigurationSpec{BindMode: "None"}}
	took(t, "bindMode None", func() { cluster.Create(t, everywhere) }, func(time.Time) error { return listens("0.0.0.0:1790") })
	cluster.Remove(t, everywhere)
	meshtest.Eventually(t, func() error { return listens(c.Prefix.Addr().String() + ":1790") })
	all("bindMode")

	// A reflector set by an operator leaves the mesh, and has the sessions of its BGPPeers.
	cluster.Create(t, &api.BGPPeer{Meta: api.Meta{Name: "reflectors"}, Spec: api.BGPPeerSpec{PeerSelector: "has(reflector)"}})
	id, labels := "1.0.0.1", `{"reflector":"yes"}`
	c.Annotate(t, api.AnnotationReflector, &id)
	took(t, "a reflector", func() { c.Annotate(t, api.AnnotationLabels, &labels) }, func(since time.Time) error {
		if p, err := between(c, a); err != nil || !p.Client {
			return fmt.Errorf("%+v, %w", p, err)
		}
		return by("reflectors", since, a, c)
	})
	other("all of it")
	for _, n := range []*meshtest.Node{a, b, c} {
		n.Running(t)
	}
}

// took waits until a change has taken effect, and logs how long that took.
func took(t *testing.T, what string, change func(), check func(since time.Time) error) {
	t.Helper()
	begun := time.Now()
	change()
	meshtest.Eventually(t, func() error { return check(begun) })
	t.Logf("%s: effective after %v", what, time.Since(begun).Round(10*time.Millisecond))
}

// quiet returns nil if none of the nodes reports a problem with the object.
func quiet(nodes ...*meshtest.Node) error {
	for _, n := range nodes {
		r, err := n.Status()
		if err != nil {
			return err
		}
		for _, problem := range r.Problems {
			if strings.Contains(problem, "special") {
				return fmt.Errorf("%s: %s", n.Name, problem)
			}
		}
	}
	return nil
}

// refuses returns nil if a node rejects this number of prefixes of another.
func refuses(n, other *meshtest.Node, want int) error {
	p, err := between(n, other)
	if err == nil && (p.Refused != want || p.State != "Established") {
		err = fmt.Errorf("%s refuses %d prefixes of %s, want %d: %+v", n.Name, p.Refused, other.Name, want, p)
	}
	return err
}

// update replaces an object's spec.
func update(t *testing.T, c *meshtest.Cluster, obj api.Resource) {
	t.Helper()
	errtest.Must(t, c.Store.Update(t.Context(), obj))
}
