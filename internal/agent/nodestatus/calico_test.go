package nodestatus

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The exact fields and values that clients of Calico read.
func TestCalicosWords(t *testing.T) {
	all := []string{api.ClassAgent, api.ClassBGP, api.ClassRoutes, "Weather"}
	for name, r := range map[string]*Report{"starting": starting(), "dual": dual(), "routed": routed()} {
		text, err := json.MarshalIndent(r.Calico(all), "", "  ")
		errtest.Must(t, err)
		difftest.Golden(t, "calico-"+name+".json", string(text)+"\n")
	}
	if got := routed().Calico([]string{api.ClassBGP}); got.Agent != nil || got.Routes != nil ||
		got.BGP.NumberEstablishedV4 != 3 || got.LastUpdated != nil {
		t.Errorf("BGP alone: %+v", got)
	}
	if got := routed().Calico(nil); got.Agent != nil || got.Routes != nil || got.BGP != nil {
		t.Errorf("nothing: %+v", got)
	}
}

// The largest answer fits into an object.
func TestAnswersAreBounded(t *testing.T) {
	r := &Report{}
	for i := range 10000 {
		r.Routes.List = append(r.Routes.List, Route{Destination: fmt.Sprintf("10.%d.%d.0/26", i/250, i%250), Via: "10.0.0.100, 10.0.0.101",
			Device: "vxlan.calico", Peer: "10.0.0.100"})
	}
	text, err := json.Marshal(r.Calico([]string{api.ClassRoutes}))
	if err != nil || len(text) > 1<<20 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
