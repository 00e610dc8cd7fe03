package plugin_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The tests here execute the real host-local of the CNI project.

// setPodCIDRs gives a Node pod CIDRs as kube-controller-manager does.
func (w *world) setPodCIDRs(t *testing.T, node string, cidrs ...string) {
	t.Helper()
	quoted := make([]string, len(cidrs))
	for i, c := range cidrs {
		quoted[i] = fmt.Sprintf("%q", c)
	}
	w.api.patch(t, "Node", "", node, fmt.Sprintf(`{"spec":{"podCIDR":%s,"podCIDRs":[%s]}}`, quoted[0], strings.Join(quoted, ",")))
}

// hostLocal is an IPAM section.
func hostLocal(more map[string]any) map[string]any {
	section := map[string]any{"type": "host-local", "dataDir": "/var/lib/cni/networks"}
	for key, value := range more {
		section[key] = value
	}
	return section
}

// lives runs ADD for a pod with host-local and returns the addresses; stop runs DEL twice and checks that nothing is
// left.
func (w *world) lives(t *testing.T, pairs ...any) (addrs []netip.Addr, s *sandbox, stop func()) {
	t.Helper()
	s = w.newPod(t, fmt.Sprintf("web-%d", len(w.pods)))
	nothing := w.unchanged(t)
	for _, ip := range s.addWith(t, pairs...).result(t).IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, a.Unmap())
	}
	if taken := w.allocations(t); len(taken) != 0 {
		t.Errorf("the datastore has %v", taken)
	}
	stop = func() {
		t.Helper()
		c := s.callWith(t, pairs...)
		c.command = "DEL"
		for range 2 {
			w.host.call(t, c).ok(t)
		}
		nothing()
		for _, name := range w.host.list(t, "/var/lib/cni/networks/"+w.network()) {
			if _, err := netip.ParseAddr(name); err == nil {
				t.Errorf("host-local still holds %s", name)
			}
		}
	}
	return addrs, s, stop
}

func wantAddrs(t *testing.T, got []netip.Addr, ranges ...string) {
	t.Helper()
	for i, r := range ranges {
		if i >= len(got) || !netip.MustParsePrefix(r).Contains(got[i]) {
			t.Errorf("addresses %v, want one of each of %v", got, ranges)
			return
		}
	}
	if len(got) != len(ranges) {
		t.Errorf("addresses %v, want one of each of %v", got, ranges)
	}
}

func podCIDROfSubnet(t *testing.T, w *world) {
	s := w.newPod(t, "refused")
	w.wantFailure(t, s.addWith(t, "ipam", hostLocal(map[string]any{"subnet": "usePodCidr"})), types.ErrInvalidNetworkConfig,
		"usePodCidr", "spec.podCIDRs", w.name, "--allocate-node-cidrs")
	w.setPodCIDRs(t, w.name, "10.240.7.0/24", w.cidr6("fd40"))
	for word, want := range map[string]string{"usePodCidr": "10.240.7.0/24", "USEPODCIDRIPV6": w.cidr6("fd40"),
		"10.241.0.0/24": "10.241.0.0/24"} {
		addrs, _, stop := w.lives(t, "ipam", hostLocal(map[string]any{"subnet": word}))
		wantAddrs(t, addrs, want)
		stop()
	}
}

func podCIDROfRanges(t *testing.T, w *world) {
	w.setPodCIDRs(t, w.name, "10.240.8.0/24", w.cidr6("fd41"))
	// A fixed range beside the special words: on DEL the range in a word's place must not overlap with it.
	ranges := [][]map[string]any{{{"subnet": "usePodCidr"}}, {{"subnet": "usePodCidrIPv6"}}, {{"subnet": "10.241.0.0/24"}}}
	addrs, s, stop := w.lives(t, "ipam", hostLocal(map[string]any{"ranges": ranges}))
	wantAddrs(t, addrs, "10.240.8.0/24", w.cidr6("fd41"), "10.241.0.0/24")
	// DEL neither reads the Node nor needs it.
	w.api.delete(t, "Node", "", w.name)
	w.proxy.take()
	stop()
	if seen := w.proxy.take(); slices.ContainsFunc(seen, func(r string) bool { return strings.Contains(r, "nodes") }) {
		t.Errorf("DEL of %s asked for %v", s.pod, seen)
	}
}

func podCIDROfAnotherName(t *testing.T, w *world) {
	other := w.name + "-k8s"
	w.api.create(t, manifest(t, fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s}}", other)))
	w.setPodCIDRs(t, other, "10.240.9.0/24")
	addrs, _, stop := w.lives(t, "ipam", hostLocal(map[string]any{"subnet": "usePodCidr"}), "kubernetes.node_name", other)
	wantAddrs(t, addrs, "10.240.9.0/24")
	stop()
	s := w.newPod(t, "refused")
	w.wantFailure(t, s.addWith(t, "ipam", hostLocal(map[string]any{"subnet": "usePodCidr"}), "kubernetes.node_name", "none"),
		types.ErrInvalidNetworkConfig, "nodes/none", "kubernetes.node_name")
}

// withRoutes returns host-local with routes; their gateways do not matter for a pod's link.
func withRoutes() map[string]any {
	return hostLocal(map[string]any{
		"subnet": "10.242.0.0/24", "routes": []map[string]any{{"dst": "10.9.0.0/16", "gw": "10.242.0.1"}, {"dst": "fd99::/64"}},
	})
}

func customRoutes(t *testing.T, w *world) {
	_, s, stop := w.lives(t, "ipam", withRoutes())
	difftest.Want(t, "routes", []string{"10.9.0.0/16"}, routesOf(t, s))
	stop()
	s = w.newPod(t, "refused")
	w.wantFailure(t,
		s.addWith(t, "ipam", hostLocal(map[string]any{"subnet": "10.242.0.0/24", "routes": []map[string]any{{"dst": "10.9.0.1"}}})),
		types.ErrInvalidNetworkConfig, "ipam.routes", `"10.9.0.1"`, "CIDR")
}

func defaultRouteToo(t *testing.T, w *world) {
	_, s, stop := w.lives(t, "ipam", withRoutes(), "include_default_routes", true)
	got := routesOf(t, s)
	slices.Sort(got)
	difftest.Want(t, "routes", []string{"0.0.0.0/0", "10.9.0.0/16"}, got)
	stop()
}

func certPEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// selfSigned makes a certificate and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	errtest.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	errtest.Must(t, err)
	bytes, err := x509.MarshalPKCS8PrivateKey(private)
	errtest.Must(t, err)
	return certPEM(der), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes}))
}
