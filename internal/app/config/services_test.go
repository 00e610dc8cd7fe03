package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

func TestServiceRanges(t *testing.T) {
	for text, want := range map[string][]api.ServiceRange{
		"": nil, "10.96.0.0/12": {{CIDR: "10.96.0.0/12"}}, "10.96.0.1/12, fd00:96::/112": {{CIDR: "10.96.0.0/12"}, {CIDR: "fd00:96::/112"}},
	} {
		var p problems
		if got := p.serviceRanges(text); !slices.Equal(got, want) || p.err() != nil {
			t.Errorf("%q: %v, %v", text, got, p.err())
		}
	}
	for _, text := range []string{"10.96.0.0", "0.0.0.0/0", "yes"} {
		_, err := LoadNode(func(name string) (string, bool) {
			return map[string]string{"NODENAME": "n1", "CALICO_ADVERTISE_CLUSTER_IPS": text}[name], true
		})
		if err == nil || !strings.Contains(err.Error(), `CALICO_ADVERTISE_CLUSTER_IPS="`+text+`"`) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
