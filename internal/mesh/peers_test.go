package mesh

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/api"
)

// Sessions may be lost, be kept from coming up, begin anew, or be with a peer that is not all there: pods' packets do not notice,
// nor do the node's probes.
func TestPeers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(t, newPool("pods", "10.90.0.0/16", api.EncapNever))
	p := c.newPair(t, 0)
	all := append(p.nodes(), c.newPair(t, 1).nodes()...)
	start(t, all...)
	settle(t, all...)

	t.Run("port", func(t *testing.T) {
		packets := p.traffic(t)
		p.a.Run(t, "nft", "add table inet closed; add chain inet closed in { type filter hook input priority 0; }; "+
			"add chain inet closed out { type filter hook output priority 0; }; "+
			"add rule inet closed in tcp dport 179 drop; add rule inet closed out tcp dport 179 drop")
		time.Sleep(time.Second)
		// Without a restart, nothing would happen before the hold time is over.
		p.a.signal(t, syscall.SIGKILL)
		p.a.start(t, build)
		eventually(t, func() error { return p.a.probe("/readyz") })
		eventually(t, func() error { return p.a.settledAlone() })
		time.Sleep(7 * time.Second)
		p.a.Run(t, "nft", "delete", "table", "inet", "closed")
		settle(t, all...)
		packets.intact(t)
	})

	t.Run("password", func(t *testing.T) {
		packets := p.traffic(t)
		for _, password := range []string{"one", "another"} {
			changed := time.Now()
			c.protect(t, password)
			// Sessions begin anew, which needs the same password at both ends.
			eventually(t, func() error {
				for _, n := range all {
					if err := n.sessionsSince(changed, len(all)-1); err != nil {
						return err
					}
				}
				return nil
			})
			for _, n := range all {
				if text := n.tail(1 << 20); strings.Contains(text, "pass-"+password) {
					t.Errorf("%s has the password in its log", n.name)
				}
			}
		}
		settle(t, all...)
		packets.intact(t)
	})

	t.Run("stopped peer", func(t *testing.T) {
		packets := p.traffic(t)
		// It keeps its connections, answers nothing, and takes new connections without a word.
		stopped := all[2]
		if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			for _, path := range []string{"/livez", "/readyz"} {
				eventually(t, func() error { return p.a.probe(path) })
			}
			// The second time, for one that has never had a session with it.
			p.a.signal(t, syscall.SIGTERM)
			p.a.start(t, build)
		}
		eventually(t, func() error { return p.a.probe("/readyz") })
		eventually(t, func() error { return p.b.probe("/readyz") })
		time.Sleep(2 * time.Second)
		if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		settle(t, all...)
		packets.intact(t)
	})

	t.Run("peers", func(t *testing.T) {
		packets := p.traffic(t)
		// First one that has no part in it, then all that the first node has.
		for _, n := range all[2:] {
			n.signal(t, syscall.SIGKILL)
			time.Sleep(2 * time.Second)
		}
		p.b.signal(t, syscall.SIGKILL)
		if err := p.a.probe("/readyz"); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Second)
		for _, path := range []string{"/livez", "/readyz"} {
			if err := p.a.probe(path); err != nil {
				t.Error(err)
			}
		}
		for _, n := range all[1:] {
			n.start(t, build)
		}
		settle(t, all...)
		packets.intact(t)
	})
}

// protect gives the mesh a password, or another one: the Secret, the right to read it, and what refers to it.
func (c *cluster) protect(t testing.TB, password string) {
	t.Helper()
	const namespace, name = "kube-system", "bgp-password"
	core, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"mesh": "pass-" + password}}
	_, err = core.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = core.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	// What the chart makes of bgp.passwordSecret.
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{name}, Verbs: []string{"get", "list", "watch"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "tortie-node", Namespace: namespace}},
	}
	_, errRole := core.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{})
	_, errBinding := core.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{})
	if err := errors.Join(err, errRole, errBinding); err != nil {
		t.Fatal(err)
	}
	ref := &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: name, Key: "mesh"}}
	c.create(t, &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.BGPConfigurationSpec{NodeMeshPassword: ref}})
}

// sessionsSince returns nil if the agent has that many sessions, all of them begun after a moment.
func (n *node) sessionsSince(since time.Time, peers int) error {
	r, err := n.status()
	if err != nil {
		return err
	}
	for _, p := range r.Peers {
		if p.State != "Established" || p.Since.Before(since) {
			return fmt.Errorf("%s: the session with %s is %s since %v, %v after the change: %s", n.name, p.Address, p.State, p.Since, p.Since.Sub(since), p.LastError)
		}
	}
	if len(r.Peers) != peers {
		return fmt.Errorf("%s has %d peers, not %d", n.name, len(r.Peers), peers)
	}
	return nil
}

// settledAlone returns nil when no session is up and the agent does what it can without.
func (n *node) settledAlone() error {
	r, err := n.status()
	if err != nil {
		return err
	}
	for _, p := range r.Peers {
		if p.State == "Established" {
			return fmt.Errorf("%s: the session with %s is up", n.name, p.Address)
		}
	}
	if r.LastError != "" || len(r.Peers) == 0 {
		return fmt.Errorf("%s: %d peers, %s", n.name, len(r.Peers), r.LastError)
	}
	return nil
}
