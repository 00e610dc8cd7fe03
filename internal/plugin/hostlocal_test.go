package plugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// ofHostLocal returns a plugin with this IPAM section.
func ofHostLocal(t *testing.T, ipam string) *delegated {
	t.Helper()
	stdin := edited(t, map[string]string{"ipam": ipam, "unknown": "12345678901234567890"})
	conf, err := readConf(calico, stdin, noEnv)
	errtest.Must(t, err)
	return &delegated{&session{conf: conf, stdin: stdin, node: "n1"}}
}

func TestFillIn(t *testing.T) {
	cidrs := &podCIDRs{v4: "10.244.3.0/24", v6: "fd00:3::/64"}
	for _, tt := range []struct{ ipam, want string }{
		{`{"type":"host-local","subnet":"usePodCidr"}`, `{"type":"host-local","subnet":"10.244.3.0/24"}`},
		{`{"type":"host-local","subnet":"USEPODCIDR","dataDir":"/d"}`, `{"type":"host-local","subnet":"10.244.3.0/24","dataDir":"/d"}`},
		{`{"type":"host-local","subnet":"usePodCidrIPv6"}`, `{"type":"host-local","subnet":"fd00:3::/64"}`},
		{`{"type":"host-local","ranges":[[{"subnet":"usePodCidr","gateway":"10.244.3.9"}],[{"subnet":"usepodcidripv6"},{"subnet":"fd01::/64"}]]}`,
			`{"type":"host-local","ranges":[[{"subnet":"10.244.3.0/24","gateway":"10.244.3.9"}],[{"subnet":"fd00:3::/64"},` +
				`{"subnet":"fd01::/64"}]]}`},
		{`{"type":"host-local","subnet":"10.0.0.0/8","ranges":null}`, `{"type":"host-local","subnet":"10.0.0.0/8","ranges":null}`},
	} {
		d := ofHostLocal(t, tt.ipam)
		got, err := editIPAM(d.stdin, cidrs.fillIn)
		if err != nil {
			t.Errorf("%s: %v", tt.ipam, err)
			continue
		}
		want := strings.Replace(string(d.stdin), tt.ipam, tt.want, 1)
		difftest.Want(t, tt.ipam, exact(t, want), exact(t, string(got)))
	}
}

func TestWords(t *testing.T) {
	for ipam, want := range map[string]string{
		`{"type":"host-local","subnet":"10.0.0.0/8"}`:                                                   "[]",
		`{"type":"host-local","subnet":"usePodCidr"}`:                                                   "[usePodCidr]",
		`{"type":"host-local","ranges":[[{"subnet":"usePodCidr"}],[{"subnet":"usePodCidrIPv6"}],[{}]]}`: "[usePodCidr usePodCidrIPv6]",
		`{"type":"other","subnet":"usePodCidr"}`:                                                        "[]",
		`{"type":"other","subnet":{"mine":1},"ranges":"mine","routes":7}`:                               "[]", // are theirs
	} {
		d := ofHostLocal(t, ipam)
		got, err := d.conf.IPAM.words()
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v; want %s", ipam, got, err, want)
		}
		if _, err := d.conf.podRoutes(); err != nil {
			t.Errorf("%s: %v", ipam, err)
		}
		if want != "[]" {
			continue
		}
		for _, of := range []func() ([]byte, error){func() ([]byte, error) { return d.stdinForAdd(t.Context()) }, d.stdinForDel} {
			if stdin, err := of(); err != nil || string(stdin) != string(d.stdin) {
				t.Errorf("%s is changed to %s, %v", d.stdin, stdin, err)
			}
		}
	}
	for ipam, want := range map[string]string{
		`{"type":"host-local","subnet":1}`:                  "ipam.subnet",
		`{"type":"host-local","ranges":[{"subnet":"x"}]}`:   "ipam.ranges",
		`{"type":"host-local","ranges":[[{"subnet":[1]}]]}`: "ipam.ranges",
	} {
		if _, err := ofHostLocal(t, ipam).stdinForAdd(t.Context()); code(t, err) != types.ErrInvalidNetworkConfig || !errtest.Names(err, want) {
			t.Errorf("%s: %v, want %s", ipam, err, want)
		}
	}
}

// DEL does not read the pod CIDRs, and passes host-local ranges that do not overlap.
func TestConfigurationForDel(t *testing.T) {
	d := ofHostLocal(t,
		`{"type":"host-local","dataDir":"/d","subnet":"usePodCidr","rangeStart":"10.0.0.9","ranges":[[{"subnet":"10.0.0.0/8"}]]}`)
	got, err := d.stdinForDel()
	errtest.Must(t, err)
	want := edited(t, map[string]string{"unknown": "12345678901234567890",
		"ipam": `{"type":"host-local","dataDir":"/d","ranges":[[{"subnet":"0.0.0.0/0"}],[{"subnet":"::/0"}]]}`})
	difftest.Want(t, "configuration", exact(t, string(want)), exact(t, string(got)))
}

func TestPodRoutes(t *testing.T) {
	for _, tt := range []struct {
		ipam     string
		defaults bool
		want     string
	}{
		{`{"type":"host-local"}`, true, "[]"},
		{`{"type":"host-local","routes":[]}`, false, "[]"},
		{`{"type":"host-local","routes":[{"dst":"10.1.2.3/8","gw":"10.0.0.1"},{"dst":"fd00::/8"}]}`, false, "[10.0.0.0/8 fd00::/8]"},
		{`{"type":"host-local","routes":[{"dst":"10.0.0.0/8"}]}`, true, "[10.0.0.0/8 0.0.0.0/0 ::/0]"},
		{`{"type":"calico-ipam","routes":[{"dst":"10.0.0.0/8"}]}`, false, "[]"}, // as with Calico
	} {
		d := ofHostLocal(t, tt.ipam)
		d.conf.IncludeDefaultRoutes = tt.defaults
		if got, err := d.conf.podRoutes(); err != nil || fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %v, %v; want %s", tt.ipam, got, err, tt.want)
		}
	}
	for ipam, want := range map[string]string{
		`{"type":"host-local","routes":[{"dst":"10.0.0.1"}]}`: `ipam.routes dst "10.0.0.1"`,
		`{"type":"host-local","routes":[{}]}`:                 `ipam.routes dst ""`,
		`{"type":"host-local","routes":{"dst":"10.0.0.1"}}`:   `ipam.routes`,
	} {
		if _, err := ofHostLocal(t, ipam).conf.podRoutes(); code(t, err) != types.ErrInvalidNetworkConfig || !errtest.Names(err, want) {
			t.Errorf("%s: %v, want %s", ipam, err, want)
		}
	}
}
