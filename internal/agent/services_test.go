package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

func servedBy(ranges ...string) *api.BGPConfigurationSpec {
	spec := &api.BGPConfigurationSpec{}
	for _, r := range ranges {
		spec.ServiceClusterIPs = append(spec.ServiceClusterIPs, api.ServiceRange{CIDR: r})
	}
	return spec
}

// The announcements for services outlive the agent, for one that starts while the API server is away.
func TestMemoryOfServices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tortie/world.json")
	w := desiredtest.World(nil)
	w.Self, w.Revision = &w.Nodes[1], 7
	m, now := memory{path: path}, time.Now()
	announced := rangesOf("10.96.0.0/12", "10.96.0.7/32")
	errtest.Must(t, m.save(now, w, nil, nil))
	if err := m.save(now.Add(mostWorldPause), w, announced, nil); err != nil { // they are a change by themselves
		t.Fatal(err)
	}
	next := memory{path: path}
	if _, _, err := next.load(now, w.Self.Name); err != nil || !slices.Equal(next.services, announced) {
		t.Errorf("%v, %v", next.services, err)
	}
}

// announced returns the prefixes set at the speaker.
func (p *peers) announced() []string {
	_, originated := p.told()
	all := []string{}
	for _, o := range originated {
		all = append(all, o.Prefix.String())
	}
	return all
}

// early sends the announced prefixes when the first session is configured.
type early struct {
	*peers
	at chan []string
}

func (e *early) SetPeers(ctx context.Context, s []bgp.Peer) error {
	if len(s) > 0 {
		select {
		case e.at <- e.announced():
		default:
		}
	}
	return e.peers.SetPeers(ctx, s)
}

// connect reads a kubeconfig.
func connect(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	cfg, err := cluster.Connect(kubeconfig, "test")
	errtest.Must(t, err)
	return cfg
}

const (
	rigServices = "/api/v1/namespaces/default/services"
	rigSlices   = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
)

// The agent announces addresses of real objects within a second of each change, and requests no services while no range
// is configured.
func TestAgentAnnouncesServices(t *testing.T) {
	r := newRig(t)
	proxy := labtest.NewProxy(t)
	r.api = labtest.AsOn(t, connect(t, proxy.Kubeconfig()), "tortie-node")
	speaker := newPeers()
	status, stop := r.agent(t, speaker)
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	asked := func() int {
		q := proxy.Requests()
		return q["list services"] + q["list endpointslices"]
	}
	if n := asked(); n != 0 {
		t.Errorf("%d requests about services that nobody announces", n)
	}
	announces := func(what string, want ...string) {
		t.Helper()
		waittest.Until(t, soon, fmt.Sprintf("%s: announces %v", what, want), func() bool { return slices.Equal(speaker.announced(), want) })
	}

	clusterIP := r.service(t, "rig-web", `{"type":"NodePort","externalTrafficPolicy":"Local","selector":{"app":"x"},"ports":[{"port":80}],`+
		`"externalIPs":["192.0.2.7","203.0.113.7"]}`)
	r.endpoints(t, "rig-web-1", "rig-web", rigNode)
	c := &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: *servedBy(clusterIP.String() + "/12")}
	whole := netip.PrefixFrom(clusterIP, 12).Masked().String()
	single := clusterIP.String() + "/32"
	labstore.Make(t, r.store, c)
	announces("the first range", whole, single)

	r.update(t, c, func() { c.Spec.ServiceExternalIPs = []api.ServiceRange{{CIDR: "192.0.2.0/24"}} })
	announces("another range", whole, single, "192.0.2.0/24", "192.0.2.7/32")
	asAdmin(t, http.MethodPatch, rigSlices+"/rig-web-1",
		fmt.Sprintf(`{"endpoints":[{"addresses":["10.90.1.9"],"nodeName":%q,"conditions":{"ready":false}}]}`, rigNode))
	announces("the last endpoint is not ready", whole, "192.0.2.0/24")
	asAdmin(t, http.MethodPatch, rigSlices+"/rig-web-1",
		fmt.Sprintf(`{"endpoints":[{"addresses":["10.90.1.9"],"nodeName":%q,"conditions":{"ready":true}}]}`, rigNode))
	announces("it is ready again", whole, single, "192.0.2.0/24", "192.0.2.7/32")

	self := &api.Node{Meta: api.Meta{Name: rigNode}}
	r.update(t, self, func() { self.Labels = map[string]string{api.LabelExcludeNode: "true"} })
	announces("the node is excluded")
	if got := status.Report(); got.LastError != "" {
		t.Errorf("error %s", got.LastError)
	}
	r.update(t, self, func() { self.Labels = nil })
	announces("and is not any more", whole, single, "192.0.2.0/24", "192.0.2.7/32")

	// A restart announces everything at once, before there are peers that would drop missing prefixes.
	stop()
	speaker = newPeers()
	first := make(chan []string, 1)
	status, _ = r.agent(t, &early{speaker, first})
	select {
	case got := <-first:
		if !slices.Contains(got, single) || !slices.Contains(got, whole) {
			t.Errorf("at the first word to peers only %v is announced", got)
		}
	case <-time.After(2 * soon):
		t.Fatal("no word to peers")
	}
	waittest.Until(t, 2*soon, "ready again", func() bool { return status.Report().Ready })

	r.update(t, c, func() { c.Spec.ServiceClusterIPs, c.Spec.ServiceExternalIPs = nil, nil })
	announces("no range")
	waittest.Until(t, soon, "the watches end", func() bool { return proxy.Open("list services")+proxy.Open("list endpointslices") == 0 })
	proxy.Reset()
	asAdmin(t, http.MethodPatch, rigSlices+"/rig-web-1", `{"endpoints":[]}`)
	r.update(t, self, func() { self.Labels = map[string]string{"rack": "r1"} })
	r.tells(t, "a later change", func(f *facts.Facts) bool { return f.NodeLabels["rack"] == "r1" })
	if n := asked(); n != 0 {
		t.Errorf("%d requests about services after the end", n)
	}
}

// service makes a Service for the test, and returns its address.
func (r *rig) service(t *testing.T, name, spec string) netip.Addr {
	t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q},"spec":%s}`, name, spec)
	var made api.Service
	errtest.Must(t, json.Unmarshal(asAdmin(t, http.MethodPost, rigServices, body), &made))
	t.Cleanup(func() { asAdmin(t, http.MethodDelete, rigServices+"/"+name, "") })
	return netip.MustParseAddr(made.Spec.ClusterIP)
}

// endpoints makes an EndpointSlice of a service with one endpoint on a node.
func (r *rig) endpoints(t *testing.T, name, service, node string) {
	t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":%q,"labels":{%q:%q}},
		"addressType":"IPv4","ports":[{"port":80}],"endpoints":[{"addresses":["10.90.1.9"],"nodeName":%q}]}`, name,
		api.LabelServiceName, service, node)
	asAdmin(t, http.MethodPost, rigSlices, body)
	t.Cleanup(func() { asAdmin(t, http.MethodDelete, rigSlices+"/"+name, "") })
}

// asAdmin sends an object as an operator's tool does, and returns the answer.
func asAdmin(t *testing.T, method, path, body string) []byte {
	t.Helper()
	answer, err := labtest.Send(labtest.RESTConfig(t), method, path, body)
	errtest.Must(t, err)
	return answer
}
