package cluster

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Kinds that are not Calico's are requested while the group of Calico's objects is not known yet.
func TestRequestBeforeTheGroupIsKnown(t *testing.T) {
	unknown := groups.Found("", func(context.Context, groups.Group) (groups.Group, error) { return "", errors.New("not yet") })
	at := Server{Config: &rest.Config{Host: "https://127.0.0.1:1"}, Group: unknown}
	clients, err := newClients(at, http.DefaultClient, (*api.Node)(nil).ResourceType(), formOf[api.Node]())
	errtest.Must(t, err)
	if url := clients.get("").URL().String(); !strings.HasSuffix(url, "/api/v1/nodes") {
		t.Errorf("request of %s, want nodes", url)
	}
}
