package controllers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// hostEndpoints returns descriptions of all host endpoints, by name.
func (w *world) hostEndpoints() (map[string]string, error) {
	var list api.List[api.CalicoHostEndpoint, *api.CalicoHostEndpoint]
	err := w.store.List(w.t.Context(), &list, datastore.ListOptions{})
	found := map[string]string{}
	for _, h := range list.Items {
		found[h.Name] = fmt.Sprintf("%s %q %v %v %v", h.Spec.Node, h.Spec.InterfaceName, h.Spec.ExpectedIPs, h.Spec.Profiles,
			names.Labels(&h.Meta))
	}
	return found, err
}

func (w *world) hasHosts(want map[string]string) {
	w.t.Helper()
	eventually(w.t, func() error {
		got, err := w.hostEndpoints()
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("host endpoints %q, want %q", got, want)
		}
		return err
	})
}

// hostWrites counts the requests of the controllers that change host endpoints, by verb, and those that were refused.
func hostWrites(t *testing.T, server *labtest.Server) (granted, refused map[string]int) {
	t.Helper()
	granted, refused = map[string]int{}, map[string]int{}
	for _, r := range server.AuditedRequests(t) {
		if r.Resource != "hostendpoints" || r.Verb == "list" || r.Verb == "watch" {
			continue
		}
		if granted[r.Verb]++; r.Forbidden {
			granted[r.Verb]--
			refused[r.Verb]++
		}
	}
	return granted, refused
}

// passes waits for more passes.
func (p *process) passes(n int) {
	p.t.Helper()
	before, err := p.status()
	errtest.Must(p.t, err)
	eventually(p.t, func() error {
		s, err := p.status()
		if err == nil && s.Passes < before.Passes+n {
			err = fmt.Errorf("%d passes after %d", s.Passes, before.Passes)
		}
		return err
	})
}

// Nodes get the same host endpoints as from Calico's controllers, with the chart's right for that purpose: they follow
// their Nodes, and are removed with them and with the setting. Other host endpoints stay, and a Node that claims
// others' addresses gets none of these.
func TestNodesHaveHostEndpoints(t *testing.T) {
	t.Parallel()
	server := taken(t, labtest.Group(t))
	w := newWorld(t, server)
	tunnel := w.give(names.TunnelHandle("a"), "a", map[string]string{"node": "a", "type": inventory.TypeIPIP}, api.UseTunnel)[0].String()
	w.create(
		&api.Node{Meta: api.Meta{Name: "a", Labels: map[string]string{"zone": "z"}, Annotations: map[string]string{
			api.AnnotationIPv4Address: "192.0.2.1/24", api.AnnotationIPv4TunnelAddr: tunnel,
		}}},
		&api.Node{Meta: api.Meta{Name: "c"}},
		&api.CalicoHostEndpoint{Meta: api.Meta{Name: "c-auto-hep"}, Spec: api.CalicoHostEndpointSpec{Node: "c", InterfaceName: "eth0"}},
	)
	settings := &api.KubeControllersConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.KubeControllersConfigurationSpec{
		Controllers: api.ControllersConfig{Node: &api.NodeControllerConfig{HostEndpoint: &api.AutoHostEndpointConfig{
			AutoCreate: "Enabled", Templates: []api.HostEndpointTemplate{
				{GenerateName: "lan", InterfaceCIDRs: []string{"192.0.2.0/24"}, Labels: map[string]string{"net": "lan"},
					Annotations: map[string]string{"note": "n"}},
			},
		}}},
	}}
	w.create(settings)
	p := w.start("one", "", "TORTIE_POLICY=on", "RECONCILER_PERIOD=1s")
	says := func(texts ...string) {
		t.Helper()
		eventually(t, func() error {
			s, err := p.status()
			if err == nil && !slices.EqualFunc(s.HostEndpoints, texts, strings.Contains) {
				err = fmt.Errorf("status: %q, want %q", s.HostEndpoints, texts)
			}
			return err
		})
	}
	const anothers = "HostEndpoint c-auto-hep has no label"
	says(anothers, "policy.autoHostEndpoints")
	labtest.GrantAll(t, w.admin, labtest.Chart(t, "--set", "policy.autoHostEndpoints=true"))

	host := func(node, interfaceName, addresses, labels string) string {
		return fmt.Sprintf("%s %q [%s] [projectcalico-default-allow] map[%s]", node, interfaceName, addresses, labels)
	}
	const by = "projectcalico.org/created-by:calico-kube-controllers"
	want := map[string]string{
		"a-auto-hep":     host("a", "*", "192.0.2.1 "+tunnel, by+" zone:z"),
		"a-lan-auto-hep": host("a", "", "192.0.2.1", "net:lan "+by+" zone:z"),
		"c-auto-hep":     `c "eth0" [] [] map[]`,
	}
	w.hasHosts(want)
	says(anothers)
	w.create(&api.Node{Meta: api.Meta{Name: "thief"}, Status: api.NodeStatus{Addresses: []api.NodeAddress{
		{Type: "InternalIP", Address: "192.0.2.66"}, {Type: "InternalIP", Address: "192.0.2.1"}, {Type: "InternalIP", Address: tunnel},
	}}})
	want["thief-auto-hep"], want["thief-lan-auto-hep"] = host("thief", "*", "192.0.2.66", by), host("thief", "",
		"192.0.2.66", "net:lan "+by)
	w.hasHosts(want)
	says("of node thief have not all addresses that its Node states: not 192.0.2.1, which is node a's", anothers)

	p.passes(2) // until its watches have its own writes
	before, refused := hostWrites(t, server)
	p.passes(3)
	if after, _ := hostWrites(t, server); !maps.Equal(before, after) || refused["create"] == 0 {
		t.Errorf("writes %v, then %v although nothing is due; refused: %v", before, after, refused)
	}

	notes := func(want string) {
		t.Helper()
		eventually(t, func() error {
			h := &api.CalicoHostEndpoint{Meta: api.Meta{Name: "a-lan-auto-hep"}}
			err := w.store.Get(t.Context(), h)
			if got := names.Annotation(&h.Meta, "note"); err == nil && got != want {
				err = fmt.Errorf("annotation note is %q, want %q", got, want)
			}
			return err
		})
	}
	notes("n")
	errtest.Must(t, w.store.Get(t.Context(), settings))
	settings.Spec.Controllers.Node.HostEndpoint.Templates[0].Annotations = nil
	errtest.Must(t, w.store.Update(t.Context(), settings))
	notes("")

	_, err := w.core.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"zone":"y"}}}`), metav1.PatchOptions{})
	errtest.Must(t, err)
	w.deleteNode("thief")
	for name, text := range want {
		want[name] = strings.ReplaceAll(text, "zone:z", "zone:y")
	}
	delete(want, "thief-auto-hep")
	delete(want, "thief-lan-auto-hep")
	w.hasHosts(want)

	errtest.Must(t, w.store.Get(t.Context(), settings))
	if s := settings.Status; s == nil || s.RunningConfig.Controllers.Node.HostEndpoint.AutoCreate != "Enabled" {
		t.Errorf("status of the settings: %+v", s)
	}
	settings.Spec.Controllers.Node.HostEndpoint.AutoCreate = "Disabled"
	errtest.Must(t, w.store.Update(t.Context(), settings))
	w.hasHosts(map[string]string{"c-auto-hep": want["c-auto-hep"]})
	eventually(t, func() error { // the server records a request after it has answered it
		if written, refused := hostWrites(t, server); written["create"] < 4 || written["update"] < 2 ||
			written["delete"] < 4 || len(refused) != 1 {
			return fmt.Errorf("writes %v, refused %v", written, refused)
		}
		return nil
	})
}
