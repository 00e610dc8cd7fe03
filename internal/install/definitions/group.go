package definitions

import (
	"context"
	"errors"
	"fmt"
	"path"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Cluster says which API group a cluster keeps Calico's objects in. kubernetes.Store is one, and has the contracts.
type Cluster interface {
	Find(ctx context.Context, first groups.Group) (groups.Group, groups.Lock, error)
	Defined(ctx context.Context, ask ...groups.Group) (groups.Group, error)
}

// Install is Apply for those definitions that are of one API group: the wanted one, or if that is empty, the one that
// the cluster has. A cluster without either gets groups.V1. No definition of the other group is created or changed: those
// of groups.V1 would turn all of Calico's programs to them. It fails at once if a ClusterInformation says that objects
// are in another group than the wanted one, and if all has no definition of the group.
func (a *Applier) Install(ctx context.Context, all []*unstructured.Unstructured, in Cluster, wanted groups.Group) error {
	var group groups.Group
	err := a.untilDone(ctx, "API group", func() (err error) {
		group, err = choose(ctx, in, wanted)
		return err
	})
	if err != nil {
		return err
	}
	var of []*unstructured.Unstructured
	for _, d := range all {
		if spec(d)["group"] == path.Dir(string(group)) {
			of = append(of, d)
		}
	}
	if len(of) == 0 {
		return fmt.Errorf("the cluster needs definitions of %s, and the directory has none of them", group)
	}
	a.tell("API group: " + string(group))
	return a.Apply(ctx, of)
}

// choose returns whose definitions a cluster gets. An error that time does not mend is a finalError.
func choose(ctx context.Context, in Cluster, wanted groups.Group) (groups.Group, error) {
	has, _, err := in.Find(ctx, groups.V1)
	if err == nil && has == "" && wanted == "" {
		has, err = in.Defined(ctx, groups.All...)
	}
	switch {
	case errors.Is(err, datastore.ErrUnavailable):
		return "", err
	case err != nil:
		return "", finalError{err}
	case has == "" && wanted == "":
		return groups.V1, nil
	case has == "":
		return wanted, nil
	case wanted != "" && wanted != has:
		return "", finalError{fmt.Errorf("apiGroup asks for %s, and the ClusterInformation of the cluster says that its objects are in %s: "+
			"set apiGroup to auto", wanted, has)}
	}
	return has, nil
}
