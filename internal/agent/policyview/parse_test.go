package policyview

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func pod(namespace, name string) end {
	return end{pod: policy.PodKey{Namespace: namespace, Name: name}}
}
func at(text string) end { return end{addr: netip.MustParseAddr(text)} }

func TestParseConnection(t *testing.T) {
	a, b := pod("default", "a"), pod("ns", "b")
	for _, c := range []struct {
		args []string
		want connection
	}{
		{[]string{"a", "ns/b:80/TCP"}, connection{from: a, to: b, protocol: tcp, port: 80}},
		{[]string{"a", "ns/b:80"}, connection{from: a, to: b, protocol: tcp, port: 80}},
		{[]string{"a -> ns/b:53/UDP"}, connection{from: a, to: b, protocol: udp, port: 53}},
		{[]string{"a->ns/b:53/UDP"}, connection{from: a, to: b, protocol: udp, port: 53}},
		{[]string{"default/a", "to", "ns/b:9/SCTP"}, connection{from: a, to: b, protocol: sctp, port: 9}},
		{[]string{"a", "->", "ns/b:http"}, connection{from: a, to: b, protocol: tcp, name: "http"}},
		{[]string{"a", "ns/b/ICMP"}, connection{from: a, to: b, protocol: icmp}},
		{[]string{"a", "b/ICMP"}, connection{from: a, to: pod("default", "b"), protocol: icmp}},
		{[]string{"ns/a", "svc/b:80"}, connection{from: pod("ns", "a"), to: end{pod: b.pod, kind: ofService}, protocol: tcp, port: 80}},
		{[]string{"deployment/a", "ns/service/b:http"}, connection{from: end{pod: policy.PodKey{Namespace: "ns", Name: "a"}, kind: ofDeployment},
			to: end{pod: b.pod, kind: ofService}, protocol: tcp, name: "http"}},
		{[]string{"10.0.0.1", "svc/b:80"}, connection{from: at("10.0.0.1"),
			to: end{pod: policy.PodKey{Namespace: "default", Name: "b"}, kind: ofService, unplaced: true}, protocol: tcp, port: 80}},
		{[]string{"a", "icmp:1"}, connection{from: a, to: pod("default", "icmp"), protocol: tcp, port: 1}},
		{[]string{"10.0.0.1", "ns/b:65535"}, connection{from: at("10.0.0.1"), to: b, protocol: tcp, port: 65535}},
		{[]string{"a", "192.0.2.1:443/TCP"}, connection{from: a, to: at("192.0.2.1"), protocol: tcp, port: 443}},
		{[]string{"fd00::1", "[fd00::2]:443"}, connection{from: at("fd00::1"), to: at("fd00::2"), protocol: tcp, port: 443}},
		{[]string{"a", "fd00::2/ICMPv6"}, connection{from: a, to: at("fd00::2"), protocol: icmpv6}},
	} {
		if got, err := parseConnection(c.args); err != nil || got != c.want {
			t.Errorf("%q: %+v, %v; want %+v", c.args, got, err, c.want)
		}
	}
}

// An error names the argument, the problem and what is valid.
func TestParseConnectionErrors(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "FROM TO:PORT"},
		{"a", "FROM TO:PORT"},
		{"a b:1 c:2", "FROM TO:PORT"},
		{"a b", `TO "b" :PORT`},
		{"a b:0", `port "0" 1 65535`},
		{"a b:65536", `port "65536"`},
		{"a b:80/tcp", `TO "b:80/tcp"`},
		{"a b:80/ICMP", "ICMP ports"},
		{"A b:80", `FROM "A" NAMESPACE/POD`},
		{"a x/y/z:80", `TO "x/y/z:80" NAMESPACE/POD`},
		{"a sts/b:80", `TO "sts/b:80" svc deploy NAMESPACE/POD`},
		{"a ns/sts/b:80", `svc deploy NAMESPACE/POD`},
		{"a 10.0.0.1:http", `port "http"`},
		{"a [fd00::1", "[ADDRESS]:PORT"},
		{"10.0.0.1 [fd00::1]:80", "families"},
	} {
		if _, err := parseConnection(strings.Fields(c.args)); !errtest.Names(err, c.want) {
			t.Errorf("%q: %v; want %q in it", c.args, err, c.want)
		}
	}
}
