package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
)

// In returns a Store at the same API server for the given group.
func (s *Store) In(g groups.Group) *Store { return &Store{client: s.client, group: groups.In(g)} }

// DryRun returns a Store that sends writes with dryRun: the API server checks them, admission and quotas too, answers,
// and does not carry them out.
func (s *Store) DryRun() *Store {
	c := *s.client
	c.dryRun = true
	return &Store{client: &c, group: s.group}
}

// Kinds returns the group in use, and the plurals, as in internal/api, of Calico's kinds that the API server has in it.
func (s *Store) Kinds(ctx context.Context) (in groups.Group, served []string, err error) {
	if in, err = s.group.Get(ctx); err != nil {
		return "", nil, err
	}
	served, err = s.Served(ctx, string(in))
	for i := range served {
		served[i] = in.Plural(served[i])
	}
	return in, served, err
}

// Lock returns the lock in the ClusterInformation default of a group, whichever group is in use.
func (s *Store) Lock(ctx context.Context, in groups.Group) (groups.Lock, error) {
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	err := s.client.do(ctx, request{method: http.MethodGet, path: toObject(info).path(in)}, info)
	if errors.Is(err, datastore.ErrNotFound) {
		return groups.Absent, nil
	}
	if err != nil {
		return groups.Absent, err
	}
	return groups.LockOf(info), nil
}

// Find returns the group in which the cluster keeps Calico's objects, and its lock; no group and groups.Absent if there
// is none, as in a new cluster. It reads the lock of first, the expected group, before the other's: if first is ready,
// this is the only request; if both are locked, first counts. If the other group may not be read, as with the rights of
// an earlier release, it counts as absent, unless first is absent too.
func (s *Store) Find(ctx context.Context, first groups.Group) (groups.Group, groups.Lock, error) {
	said := map[groups.Group]groups.Lock{}
	for _, in := range []groups.Group{first, first.Other()} {
		lock, err := s.Lock(ctx, in)
		if errors.Is(err, datastore.ErrUnauthorized) && said[first] != groups.Absent {
			err = nil
		}
		if err != nil {
			return "", groups.Absent, err
		}
		if said[in] = lock; lock == groups.Ready {
			return in, lock, nil
		}
	}
	in := groups.Choose(said[groups.V1], said[groups.V3])
	if said[first] == groups.Locked {
		in = first
	}
	return in, said[in], nil
}

// Served returns the plurals of the kinds that the API server has in a group and version; none if it has no such group.
func (s *Store) Served(ctx context.Context, groupVersion string) ([]string, error) {
	var found struct {
		Resources []struct {
			Name string `json:"name"`
		} `json:"resources"`
	}
	err := s.client.do(ctx, request{method: http.MethodGet, path: "/apis/" + groupVersion}, &found)
	if errors.Is(err, datastore.ErrNotFound) {
		err = nil
	}
	served := []string{}
	for _, r := range found.Resources {
		served = append(served, r.Name)
	}
	return served, err
}

// Defined returns which of some groups the API server has definitions of: groups.V1 if of both, empty if of none. It
// makes one request for each.
func (s *Store) Defined(ctx context.Context, ask ...groups.Group) (groups.Group, error) {
	served := map[groups.Group][]string{}
	for _, in := range ask {
		var err error
		if served[in], err = s.Served(ctx, string(in)); err != nil {
			return "", err
		}
	}
	return groups.ChooseNew(served[groups.V1], served[groups.V3]), nil
}

// FindGroup returns the group in which a cluster, perhaps a new one, keeps Calico's objects or should keep them. A
// wanted group is taken if the API server has its definitions. If both groups are locked, the objects are where they
// were before. Without definitions it is datastore.ErrNotFound.
//
// It makes one request in a cluster of groups.V1 that is set up, three in one of groups.V3, up to five if that is
// locked, four in a new one, and one if a group is wanted.
func (s *Store) FindGroup(ctx context.Context, wanted, before groups.Group) (in groups.Group, err error) {
	ask := groups.All
	if wanted != "" {
		ask = []groups.Group{wanted}
	} else {
		var lock groups.Lock
		in, lock, err = s.Find(ctx, groups.V1)
		if err == nil && lock == groups.Locked && before == groups.V3 && in != before {
			in, _, err = s.Find(ctx, before)
		}
		if err != nil || in == groups.V1 {
			return in, err
		}
		if in != "" {
			ask = []groups.Group{in} // Calico's own API server may have become ready in between
		}
	}
	switch in, err = s.Defined(ctx, ask...); {
	case err != nil || in != "":
		return in, err
	case wanted != "":
		return "", fmt.Errorf("%w: CALICO_API_GROUP is %s, and the API server has no definition of ipamblocks in it: "+
			"install its definitions, or leave the variable empty, so that the group is found", datastore.ErrNotFound, wanted)
	}
	return "", fmt.Errorf("%w: the API server has a definition of ipamblocks neither in %s nor in %s: the chart installs them",
		datastore.ErrNotFound, groups.V1, groups.V3)
}
