package cluster

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api/groups"
)

// Finding returns a server whose group is found with the first request for one of Calico's objects. A group that is
// wanted is taken, once the API server has such a group: see kubernetes.Store.FindGroup.
func Finding(cfg *rest.Config, wanted groups.Group) Server {
	var in *groups.Current
	in = groups.Found(wanted, func(ctx context.Context, wanted groups.Group) (groups.Group, error) {
		store, err := OpenStore(Server{Config: cfg})
		if err != nil {
			return "", err
		}
		defer store.Close()
		return store.FindGroup(ctx, wanted, in.Expected())
	})
	return Server{Config: cfg, Group: in}
}
