package cluster

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	clientset "k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// TestNamesAndColumns: the API server takes the definitions' short names, and shows a pool's encapsulation and whether
// it assigns.
func TestNamesAndColumns(t *testing.T) {
	_, store := watchReal(t)
	pool := &api.IPPool{Meta: api.Meta{Name: "columns"}, Spec: api.IPPoolSpec{CIDR: "10.99.0.0/24", BlockSize: 26, VXLANMode: api.EncapAlways}}
	create(t, store, pool)
	pool.Status = &api.IPPoolStatus{Conditions: []api.Condition{
		{Type: api.Allocatable, Status: "False", Reason: "Overlap", Message: "it overlaps", LastTransitionTime: "2026-01-02T03:04:05Z"},
	}}
	body, err := json.Marshal(map[string]any{"status": pool.Status})
	errtest.Must(t, err)
	cfg := labtest.RESTConfig(t)
	group := "/apis/" + string(labtest.Group(t))
	errtest.Must(t, raw(t, cfg, http.MethodPatch, group+"/ippools/columns/status", string(body)))

	client := clientset.NewForConfigOrDie(cfg).RESTClient()
	text, err := client.Get().AbsPath(group).DoRaw(t.Context())
	errtest.Must(t, err)
	var served struct {
		Resources []struct {
			Name       string
			ShortNames []string
		}
	}
	errtest.Must(t, json.Unmarshal(text, &served))
	got := map[string][]string{}
	for _, r := range served.Resources {
		got[r.Name] = r.ShortNames
	}
	names := map[string]string{"globalnetworkpolicies": "gnp", "networkpolicies": "cnp", "globalnetworksets": "gns", "hostendpoints": "hep"}
	if labtest.Group(t) == groups.V1 {
		names["felixconfigurations"] = "felixconfig" // Calico's definition of projectcalico.org/v3 has no short name
	}
	for plural, short := range names {
		if !slices.Contains(got[plural], short) {
			t.Errorf("%s: short names %q, want %s", plural, got[plural], short)
		}
	}

	text, err = client.Get().AbsPath(group+"/ippools/columns").SetHeader("Accept",
		"application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	errtest.Must(t, err)
	var table struct {
		ColumnDefinitions []struct{ Name string }
		Rows              []struct{ Cells []any }
	}
	errtest.Must(t, json.Unmarshal(text, &table))
	cells := map[string]any{}
	for i, c := range table.ColumnDefinitions {
		cells[c.Name] = table.Rows[0].Cells[i]
	}
	difftest.Want(t, "cells", map[string]any{"VXLAN": "Always", "Allocatable": "False"},
		map[string]any{"VXLAN": cells["VXLAN"], "Allocatable": cells["Allocatable"]})
}
