package config

import (
	"strings"
	"testing"
)

func TestMetrics(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want Metrics
		err  string
	}{
		"as Felix by default": {nil, Metrics{}, ""},
		"on all addresses":    {map[string]string{"FELIX_PROMETHEUSMETRICSENABLED": "true"}, Metrics{Addr: ":9091"}, ""},
		"on one of IPv6": {map[string]string{"FELIX_PROMETHEUSMETRICSENABLED": "true", "FELIX_PROMETHEUSMETRICSHOST": "fd00::5",
			"FELIX_PROMETHEUSMETRICSPORT": "99"}, Metrics{Addr: "[fd00::5]:99"}, ""},
		"for each peer": {map[string]string{"TORTIE_METRICS_PER_PEER": "true"}, Metrics{PerPeer: true}, ""},
		"no port":       {map[string]string{"FELIX_PROMETHEUSMETRICSPORT": "0"}, Metrics{}, "FELIX_PROMETHEUSMETRICSPORT"},
		"neither":       {map[string]string{"FELIX_PROMETHEUSMETRICSENABLED": "perhaps"}, Metrics{}, "FELIX_PROMETHEUSMETRICSENABLED"},
	} {
		env := func(name string) (string, bool) {
			if name == "NODENAME" {
				return "n1", true
			}
			v, ok := c.env[name]
			return v, ok
		}
		got, err := LoadNode(env)
		switch {
		case c.err == "" && (err != nil || got.Metrics != c.want):
			t.Errorf("%s: %+v, %v; want %+v", name, got.Metrics, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v; want %s in it", name, err, c.err)
		}
	}
	d, err := LoadDiagnose(func(name string) (string, bool) { return "85", name == "TORTIE_ROUTE_PROTOCOL" })
	if err != nil || d.RouteProtocol != 85 || d.HealthAddr != "127.0.0.1:9099" {
		t.Errorf("%+v, %v", d, err)
	}
}
