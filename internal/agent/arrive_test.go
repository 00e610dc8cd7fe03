package agent

import (
	"errors"
	"net/http"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestAgentMoves migrates to projectcalico.org/v3 under a node with three pods. The first address was assigned before
// the copy. The second was assigned after it, only in crd.projectcalico.org/v1, and a webhook rejects its claim for a
// while. The third has since been assigned to another node's pod. Then another agent starts after the way back, which
// none has seen.
func TestAgentMoves(t *testing.T) {
	server := labtest.NewServerOf(t, groups.V1)
	server.Define(t, groups.V3)
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	v1 := labstore.At(t, server.Kubeconfig()).In(groups.V1)
	v3 := v1.In(groups.V3)
	r := newRigAt(t, v1, labtest.AsOn(t, cfg, "tortie-node"))
	found := cluster.Finding(r.api, "")
	r.group = found.Group
	assign := func(in *ipam.Client, node, pod string, a string) {
		t.Helper()
		owner := ipam.Owner{Handle: "k8s-pod-network." + pod, Attrs: map[string]string{"pod": pod, "namespace": "default", "node": node}}
		_, err := in.Assign(t.Context(),
			ipam.Request{Owner: owner, Host: node, Use: api.UseWorkload, Addresses: []netip.Addr{netip.MustParseAddr(a)}})
		errtest.Must(t, err)
	}
	in1, in3 := ipam.NewClient(v1, time.Now), ipam.NewClient(v3, time.Now)
	r.ns.Run(t, "ip", "link", "add", "cali0000000001", "type", "veth", "peer", "name", "pod")
	r.ns.Run(t, "ip", "link", "set", "cali0000000001", "up")
	for _, pod := range []string{"10.90.1.5", "10.90.1.6", "10.90.1.7"} {
		r.ns.Run(t, "ip", "route", "add", pod, "dev", "cali0000000001", "proto", "boot")
	}
	assign(in1, rigNode, "before", "10.90.1.5")
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	status, stop := r.agent(t, newPeers())
	in := func(g groups.Group) func(*facts.Facts) bool {
		return func(f *facts.Facts) bool { return f.Group == g && f.DatastoreReady && !f.Moving }
	}
	r.tells(t, "that all is in v1", in(groups.V1))
	shows := func(of *Status, want string) {
		t.Helper()
		waittest.Until(t, soon, "metric "+want, func() bool { return strings.Contains(scraped(t, of), "\n"+want+"\n") })
	}
	shows(status, `tortie_datastore_locked{group="crd.projectcalico.org/v1"} 0`)
	waittest.Until(t, soon, "routes", r.has(t, toOther))

	ready := func(in groups.Group, ready bool) {
		t.Helper()
		info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
		store, write := v1.In(in), v1.In(in).Update
		if store.Get(t.Context(), info) != nil {
			errtest.Must(t, v1.In(in.Other()).Get(t.Context(), info))
			info.Meta = api.Meta{Name: info.Name}
			write = store.Create
		}
		info.Spec.DatastoreReady = &ready
		errtest.Must(t, write(t.Context(), info))
	}
	ready(groups.V1, false)
	r.tells(t, "that nothing is to be written", func(f *facts.Facts) bool { return f.Group == groups.V1 && !f.DatastoreReady && !f.Moving })
	shows(status, `tortie_datastore_locked{group="crd.projectcalico.org/v1"} 1`)
	pool := api.IPPoolSpec{CIDR: "10.90.0.0/16", NATOutgoing: true, NodeSelector: "all()"}
	labstore.Make(t, v3, &api.IPPool{Meta: api.Meta{Name: "rig"}, Spec: pool})
	for _, obj := range []api.Resource{&api.IPAMConfig{}, &api.FelixConfiguration{}} {
		obj.GetMeta().Name = api.DefaultName
		errtest.Must(t, v1.Get(t.Context(), obj))
		*obj.GetMeta() = api.Meta{Name: api.DefaultName}
		labstore.Make(t, v3, obj)
	}
	assign(in3, rigNode, "before", "10.90.1.5")
	assign(in3, rigOther, "elsewhere", "10.90.2.1")
	assign(in1, rigNode, "late", "10.90.1.6")
	assign(in1, rigNode, "too-late", "10.90.1.7")
	assign(in3, rigOther, "other", "10.90.1.7")
	hook := labtest.NewWebhook(t)
	hook.Answer(func(string) labtest.Verdict { return labtest.Verdict{Code: http.StatusForbidden, Message: "not now"} })
	labstore.Make(t, v1, &labtest.Webhooks{Meta: api.Meta{Name: "refuses"},
		Webhooks: hook.Configuration(t, "refuses.example.com", "Fail", path.Dir(string(groups.V3)), "ipamblocks")})
	block := &api.IPAMBlock{Meta: api.Meta{Name: "10-90-1-0-26"}}
	errtest.Must(t, v3.Get(t.Context(), block))
	waittest.Until(t, soon, "the webhook is asked", func() bool { return errors.Is(v3.Update(t.Context(), block), datastore.ErrRefused) })
	refused := hook.Asked("update ipamblocks")
	ready(groups.V3, true)
	waittest.Until(t, soon, "a claim is refused", func() bool { return hook.Asked("update ipamblocks") > refused })
	held := func(f *facts.Facts) bool { return f.Group == groups.V3 && !f.DatastoreReady }
	r.tells(t, "that nothing may be written in v3 yet", held)
	stop()
	status, stop = r.agent(t, newPeers())
	waittest.Until(t, soon, "a route by the agent that starts", r.has(t, toOther))
	r.tells(t, "the same by the next agent", held)
	shows(status, `tortie_datastore_locked{group="projectcalico.org/v3"} 1`)
	if got := facts.ReadGroup(filepath.Join(r.runDir, groupFile)); got != groups.V1 {
		t.Errorf("noted for plugins before the claim: %q", got)
	}
	hook.Answer(func(string) labtest.Verdict { return labtest.Verdict{} })
	r.tells(t, "that all is in v3", in(groups.V3))
	shows(status, `tortie_datastore_locked{group="projectcalico.org/v3"} 0`)
	if !r.has(t, toOther)() {
		t.Errorf("routes after the move: %s", r.routes(t))
	}
	holders := func() (all []string) {
		t.Helper()
		for _, node := range []string{rigNode, rigOther} {
			list, err := in3.Holders(t.Context(), node)
			errtest.Must(t, err)
			for _, h := range list {
				for _, a := range h.Addresses {
					if netip.MustParsePrefix("10.90.1.0/26").Contains(a) && h.Attrs["pod"] != "" {
						all = append(all, a.String()+" "+h.Handle)
					}
				}
			}
		}
		slices.Sort(all)
		return all
	}
	difftest.Want(t, "assigned in v3", []string{
		"10.90.1.5 k8s-pod-network.before", "10.90.1.6 k8s-pod-network.late", "10.90.1.7 k8s-pod-network.other",
	}, holders())
	named(t, status, "address 10.90.1.7 is in use on this node")
	if got := facts.ReadGroup(filepath.Join(r.runDir, groupFile)); got != groups.V3 {
		t.Errorf("noted for plugins: %q", got)
	}

	stop()
	ready(groups.V3, false) // by an operator: v1 is still locked, by the migration
	r.group = cluster.Finding(r.api, "").Group
	_, stop = r.agent(t, newPeers())
	r.tells(t, "that v3 is locked", func(f *facts.Facts) bool { return f.Group == groups.V3 && !f.DatastoreReady })
	stop()
	ready(groups.V1, true)
	r.group = cluster.Finding(r.api, "").Group
	status, stop = r.agent(t, newPeers())
	r.tells(t, "that all is in v1 again", in(groups.V1))
	if got := facts.ReadGroup(filepath.Join(r.runDir, groupFile)); got != groups.V1 {
		t.Errorf("noted for plugins: %q", got)
	}
	if p := status.Report().Problems; slices.ContainsFunc(p, func(s string) bool { return strings.Contains(s, "in use on this node") }) {
		t.Errorf("problems of addresses that are assigned: %q", p)
	}

	// A migration without the agent, in which a plugin is the first to find v3.
	stop()
	r.ns.Run(t, "ip", "route", "add", "10.90.1.8", "dev", "cali0000000001", "proto", "boot")
	assign(in1, rigNode, "unseen", "10.90.1.8")
	ready(groups.V1, false)
	ready(groups.V3, true)
	errtest.Must(t, facts.WriteGroup(filepath.Join(r.runDir, groupFile), groups.V3))
	r.group = cluster.Finding(r.api, "").Group
	r.agent(t, newPeers())
	r.tells(t, "that all is in v3 again", in(groups.V3))
	if got := holders(); !slices.Contains(got, "10.90.1.8 k8s-pod-network.unseen") {
		t.Errorf("assigned in v3: %q", got)
	}
}

// TestGroupArrived has the two files that agents and plugins of this release and of earlier ones leave: the agent has
// arrived only where its own file says so, and no plugin has found another group since.
func TestGroupArrived(t *testing.T) {
	for _, tc := range []struct{ file, arrived, want groups.Group }{
		{"", "", ""},
		{groups.V3, "", ""}, // by a plugin, or an earlier release
		{"", groups.V3, ""},
		{groups.V1, groups.V3, ""},
		{groups.V3, groups.V3, groups.V3},
	} {
		a := &Agent{Deps: Deps{Config: config.Node{RunDir: t.TempDir()}}}
		for name, in := range map[string]groups.Group{groupFile: tc.file, arrivedFile: tc.arrived} {
			if in != "" {
				errtest.Must(t, facts.WriteGroup(filepath.Join(a.Config.RunDir, name), in))
			}
		}
		if got, before := a.groupArrived(), a.groupBefore(); got != tc.want || before != tc.file {
			t.Errorf("files %q and %q: arrived in %q, before %q", tc.file, tc.arrived, got, before)
		}
	}
}
