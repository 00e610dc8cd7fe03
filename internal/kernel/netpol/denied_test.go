package netpol

import (
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/policy"
)

// Texts in the kernel's log are parsed to the same Denied.
func TestDeniedIsRead(t *testing.T) {
	for _, want := range []Denied{
		{By: policy.ID{Kind: policy.KindNetworkPolicy, Namespace: "shop", Name: "web"}},
		{Direction: policy.Egress, By: policy.ID{Kind: policy.KindClusterNetworkPolicy, Name: "all"}},
		{Direction: policy.Egress, By: policy.ID{Kind: policy.KindCalicoGlobalNetworkPolicy, Name: "tier.deny"}},
		{Reason: unknownLink}, {Direction: policy.Egress, Reason: podToHost}, {Reason: invalidState},
	} {
		if got, ok := parseDenied(want.String()); !ok || got != want {
			t.Errorf("%q is read as %+v, %t, want %+v", want, got, ok, want)
		}
	}
	long := Denied{By: policy.ID{Kind: policy.KindNetworkPolicy, Namespace: "shop", Name: strings.Repeat("n", 253)}}
	if got, ok := parseDenied(long.String()); !ok || got.By.Namespace != "shop" || !strings.HasPrefix(got.By.Name, "nnn") {
		t.Errorf("%q is read as %+v, %t", long, got, ok)
	}
	for _, text := range []string{"", "ingress", "log ingress NetworkPolicy shop/web rule 2", "UFW BLOCK"} {
		if got, ok := parseDenied(text); ok {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
