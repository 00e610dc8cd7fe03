package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// prepare gives a node what it has without a pod network: the tables of kube-proxy, addresses that no other host has,
// and forwarding, which Kubernetes demands of every node. Tortie leaves forwarding on when it goes, since others may
// count on it. The directories are those that the kubelet makes in order to mount them; nobody can remove them from
// inside the mount.
const prepare = `until nft list table ip6 kube-proxy && [ -z "$(ip -6 addr show tentative)" ]; do sleep 0.1; done >/dev/null 2>&1
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
mkdir -p /opt/cni/bin /etc/cni/net.d /var/lib/calico /var/run/calico /var/log/calico`

// theirPools is a foreign definition: it lacks fields that Tortie needs, and has a field of its own. Its group and
// version are left out.
const theirPools = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ippools.crd.projectcalico.org}
spec:
  group: %s
  scope: Cluster
  names: {kind: IPPool, listKind: IPPoolList, plural: ippools, singular: ippool}
  versions:
    - name: %s
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec: {type: object, properties: {cidr: {type: string}, theirOwn: {type: string}}}
`

// theirDefinition creates theirPools, so that an installation finds it.
func (w *world) theirDefinition(t *testing.T) {
	t.Helper()
	kind := labtest.KindOf(t, "ippools")
	w.Kubectl(t, "apply", "-f", w.Manifest(t, fmt.Sprintf(theirPools, kind.Group, kind.Version)))
	w.Kubectl(t, "wait", "--for=condition=Established", "--timeout="+patience.String(), "crd/ippools.crd.projectcalico.org")
}

// completed fails the test unless the installation has added what theirPools lacks, and left the rest.
func (w *world) completed(t *testing.T) {
	t.Helper()
	pools := w.Kubectl(t, "get", "crd", "ippools.crd.projectcalico.org", "-o", "yaml")
	difftest.Contains(t, pools, "theirOwn:", "blockSize:", "vxlanMode:")
}

// helmTest runs the chart's own test: its pods send packets both ways in both families.
func (w *world) helmTest(t *testing.T) {
	out := w.Run(t, "helm", "test", "tortie", "--namespace", "kube-system", "--timeout", patience.String(), "--logs")
	if strings.Count(out, "25 of 25 packets answered") != 4 {
		t.Errorf("helm test shows its log once, with all packets answered:\n%s", out)
	}
}

// uninstalled takes the release away, with a tunnel in use and pods that run: then the hosts are as they were before,
// the Nodes have no trace, and pools and addresses are still there.
func (w *world) uninstalled(t *testing.T, before map[string]string) {
	w.vxlan(t, "Always", len(nodes)-1)
	w.StartPod(t, "web", "node1")
	if w.Hosts(t, "node1")["node1"] == before["node1"] {
		t.Fatal("the listing does not show what an installation does to a host")
	}
	w.Run(t, "helm", "uninstall", "tortie", "--namespace", "kube-system", "--timeout", patience.String())
	if diff := cmp.Diff(before, w.Hosts(t, nodes...)); diff != "" {
		t.Errorf("the hosts are not what they were (-before +after):\n%s", diff)
	}
	w.noTrace(t)
}

// ofPools is the finalizer of Calico's that pools of projectcalico.org/v3 keep.
const ofPools = "    finalizers:\n    - projectcalico.org/ippool-finalizer\n"

// noTrace looks at the API: the release and what agents wrote on Nodes are gone; data stay, and no finalizer holds
// them.
func (w *world) noTrace(t *testing.T) {
	t.Helper()
	all := w.Kubectl(t, "get", "nodes", "-o", "yaml")
	for _, trace := range []string{"projectcalico.org", "tortie.io", "NetworkUnavailable"} {
		if strings.Contains(all, trace) {
			t.Errorf("a Node still has %s:\n%s", trace, all)
		}
	}
	const kinds = "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings," +
		"services,leases,jobs,pods"
	meshtest.Within(t, patience, func() error {
		left := strings.Fields(w.Kubectl(t, "get", "-n", "kube-system", "-l", "app.kubernetes.io/part-of=tortie", "-o", "name", kinds))
		// The pod of helm test stays, so that its logs can be read.
		left = slices.DeleteFunc(left, func(name string) bool { return name == "pod/tortie-test" })
		if len(left) > 0 {
			return fmt.Errorf("of the release there is still %q", left)
		}
		return nil
	})
	for _, kind := range []string{"ippools", "ipamblocks", "blockaffinities", "ipamhandles"} {
		out := w.Kubectl(t, "get", kind, "-o", "yaml")
		held := out
		if labtest.Group(t) == groups.V3 {
			held = strings.ReplaceAll(out, ofPools, "")
		}
		if !strings.Contains(out, "cidr") && !strings.Contains(out, "handleID") || strings.Contains(held, "finalizers") {
			t.Errorf("%s are data, which stay without finalizers:\n%s", kind, out)
		}
	}
	for _, pool := range strings.Fields(w.Kubectl(t, "get", "ippools", "-o", "name")) {
		w.Kubectl(t, "patch", pool, "--type=merge", "-p", `{"metadata":{"finalizers":[]}}`) // by docs/apigroups.md
	}
	w.Kubectl(t, "delete", "ippools", "--all", "--timeout="+patience.String())
	labtest.FollowPage(t, "chart.md", "Delete the data", w.Command("kubectl"))
	if left := w.Kubectl(t, "get", "crd", "-l", "app.kubernetes.io/part-of=tortie", "-o", "name"); left != "" {
		t.Errorf("definitions that are left:\n%s", left)
	}
}
