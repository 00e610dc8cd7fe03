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

// Cluster detects the API group of a cluster's Calico objects. kubernetes.Store implements and documents it.
type Cluster interface {
	Find(ctx context.Context, first groups.Group) (groups.Group, groups.Lock, error)
	Defined(ctx context.Context, ask ...groups.Group) (groups.Group, error)
}

// Install is Apply for the definitions of one API group: the wanted one, or if that is empty, the cluster's, or without
// either groups.V1. It creates or changes no definition of the other group: definitions of groups.V1 would make all of
// Calico's programs use them. It fails at once if a ClusterInformation shows that objects are in another group than the
// wanted one, or if all contains no definition of the group.
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

// choose returns the group for Install. An error that does not pass with time is a finalError.
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
