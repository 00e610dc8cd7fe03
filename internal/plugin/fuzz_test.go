package plugin

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// wantCode fails the test if an error has no CNI code of its own: bad input is never an internal error.
func wantCode(t *testing.T, err error) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code == types.ErrInternal || e.Code == types.ErrUnknown {
		t.Errorf("error %v has no code of its own", err)
	}
}

// FuzzConf: a configuration is refused with a CNI code, or has a name, an IPAM type and a kubeconfig.
func FuzzConf(f *testing.F) {
	golden, err := os.ReadFile("testdata/golden/stdin-conf.json")
	errtest.Must(f, err)
	for _, seed := range []string{
		string(golden), minimalConf, "", "{}", "null", "[]", `{"name":1}`, `{"ipam":{"type":"x"},"ipam":null}`,
		`{"name":"n","policy":{"type":"k8s"},"kubernetes":{"kubeconfig":"k"},"IPAM":{"type":"x"}}`,
		`{"name":"n","policy":{"type":"k8s"},"kubernetes":{"kubeconfig":"k"},"ipam":{"type":"x"},"ipam":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stdin []byte) {
		conf, err := parseConf(calico, stdin)
		if err != nil {
			wantCode(t, err)
			return
		}
		if conf.Name == "" || conf.IPAM.Type == "" || conf.Kubernetes.Kubeconfig == "" {
			t.Errorf("%s passes as a configuration", stdin)
		}
	})
}

// FuzzArgs: CNI_ARGS are refused with a CNI code, or name a pod and a namespace that there can be.
func FuzzArgs(f *testing.F) {
	for _, seed := range []string{
		"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;X=1", "", ";", "=", "a=b=c",
		"CommonArgs=1", "IgnoreUnknown=maybe", "K8S_POD_NAMESPACE=..;K8S_POD_NAME=%2e",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := readRequest(t, &skel.CmdArgs{StdinData: []byte(minimalConf), Args: text})
		if err != nil {
			wantCode(t, err)
			return
		}
		for _, name := range []string{r.namespace, r.pod} {
			if !objectName.MatchString(name) {
				t.Errorf("%q passes as a name", name)
			}
		}
	})
}

// FuzzAnnotations: annotations of a pod and its namespace are refused with a CNI code, or ask for addresses and a MAC
// that there can be.
func FuzzAnnotations(f *testing.F) {
	for _, seed := range []string{`["default-ipv4-ippool"]`, `["10.0.0.0/8","b"]`, "", "[]", "null", "{}", `"a"`, `[null]`, "[\"\xff\"]", "[",
		`["IPv4","IPv6"]`, `["10.0.0.5","fd00::5"]`, `["10.0.0.5","10.0.0.6"]`, `["::ffff:10.0.0.5"]`, `["fe80::1%eth0"]`,
		"02:00:5e:10:00:01", "01:00:5e:10:00:01", "02-00-5e-10-00-01", `["10.1.2.3/16"]`, `["::/0"]`} {
		f.Add(seed, `["n"]`)
		f.Add("", seed)
	}
	f.Fuzz(func(t *testing.T, ofPod, ofNamespace string) {
		for _, a := range annotations {
			r := &session{conf: permissive(t)}
			w := shop(map[string]string{a.Key: ofPod}, map[string]string{a.Key: ofNamespace})
			got, err := r.request(w)
			if err != nil {
				wantCode(t, err)
				continue
			}
			if len(got.addresses) > 2 || len(got.unmanaged) > 2 || got.mac != nil && len(got.mac) != 6 {
				t.Errorf("annotation %s %q, %q is accepted as %+v", a.Key, ofPod, ofNamespace, got)
			}
			for _, addr := range slices.Concat(got.addresses, got.unmanaged, got.floating) {
				if !addr.IsValid() || addr.Is4In6() || addr.Zone() != "" {
					t.Errorf("annotation %s %q: address %v", a.Key, ofPod, addr)
				}
			}
		}
	})
}

// FuzzHostLocal reads IPAM sections of host-local.
func FuzzHostLocal(f *testing.F) {
	for _, seed := range []string{
		`{"type":"host-local","subnet":"usePodCidr"}`, `{"type":"host-local","ranges":[[{"subnet":"usePodCidrIPv6"}],[]]}`,
		`{"type":"host-local","ranges":[null,[null]],"routes":[null]}`, `{"type":"host-local","subnet":null,"routes":[{"dst":"10.0.0.0/8"}]}`,
		`{"type":"host-local","ranges":{}}`, `{"type":"host-local","Subnet":"usePodCidr"}`, `{"type":"host-local","routes":[{"dst":"::/0"}]}`,
	} {
		f.Add(seed)
	}
	cidrs := &podCIDRs{v4: "10.244.3.0/24", v6: "fd00:3::/64"}
	f.Fuzz(func(t *testing.T, ipam string) {
		if !json.Valid([]byte(ipam)) {
			return
		}
		stdin := edited(t, map[string]string{"ipam": ipam})
		conf, err := readConf(calico, stdin, noEnv)
		if err != nil {
			wantCode(t, err)
			return
		}
		if routes, err := conf.podRoutes(); err != nil {
			wantCode(t, err)
		} else if slices.ContainsFunc(routes, func(p netip.Prefix) bool { return !p.IsValid() || p != p.Masked() }) {
			t.Errorf("%s: routes %v", ipam, routes)
		}
		words, err := conf.IPAM.words()
		if err != nil {
			wantCode(t, err)
			return
		}
		filled, err := editIPAM(stdin, cidrs.fillIn)
		if err != nil {
			return // in a form that only words accepts
		}
		again, err := readConf(calico, filled, noEnv)
		if err != nil {
			t.Fatalf("host-local is given what is refused: %v in %s", err, filled)
		}
		if left, err := again.IPAM.words(); err != nil || len(left) > 0 {
			t.Errorf("%s with words %v: %v are left in %s (%v)", ipam, words, left, filled, err)
		}
	})
}

// FuzzLease reads a directory of host-local with files of any name and content.
func FuzzLease(f *testing.F) {
	for _, seed := range [][2]string{
		{"10.0.0.5", "c1\r\neth0"}, {"10.0.0.5", "c1"}, {"fd00::5", ""}, {"lock", ""}, {"last_reserved_ip.0", "10.0.0.5"},
		{"10.0.0.5", "../../etc\n"}, {"10.0.0.5", "a b"}, {"::ffff:10.0.0.5", "c1\n"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, name, content string) {
		dir := t.TempDir()
		if filepath.Base(name) != name || os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600) != nil {
			return
		}
		leases, err := readLeases(dir)
		if err != nil {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("error %v does not name the file %q", err, name)
			}
			return
		}
		for _, l := range leases {
			if !l.address.IsValid() || l.address.Is4In6() || strings.ContainsAny(l.container, "/ \r\n") || filepath.Dir(l.path) != dir {
				t.Errorf("file %q with %q is read as %+v", name, content, l)
			}
		}
	})
}
