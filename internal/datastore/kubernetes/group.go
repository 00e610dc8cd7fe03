package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

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
	info, err := s.information(ctx, in)
	return groups.LockOf(info), err
}

// information returns the ClusterInformation default of a group, nil if there is none.
func (s *Store) information(ctx context.Context, in groups.Group) (*api.ClusterInformation, error) {
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	err := s.client.do(ctx, request{method: http.MethodGet, path: toObject(info).path(in)}, info)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return info, nil
}

// Informations is the ClusterInformation default of each group that was read and has one.
type Informations map[groups.Group]*api.ClusterInformation

// Informations returns the ClusterInformation default of both groups. It reads that of first, the expected group, before
// the other's: if first is ready, this is the only request. If the other one may not be read, as with the rights of an
// earlier release, it counts as absent, unless first has none either. An error comes with what was read before.
func (s *Store) Informations(ctx context.Context, first groups.Group) (Informations, error) {
	said := Informations{}
	for _, in := range []groups.Group{first, first.Other()} {
		info, err := s.information(ctx, in)
		if errors.Is(err, datastore.ErrUnauthorized) && said[first] != nil {
			err = nil
		}
		if err != nil {
			return said, err
		}
		if said[in] = info; said.Lock(in) == groups.Ready {
			break
		}
	}
	return said, nil
}

// Lock returns the lock of a group.
func (i Informations) Lock(in groups.Group) groups.Lock { return groups.LockOf(i[in]) }

// group returns the group that holds the objects: groups.Choose's; if both are locked, first.
func (i Informations) group(first groups.Group) groups.Group {
	in := groups.Choose(i.Lock(groups.V1), i.Lock(groups.V3))
	if i.Lock(first) == groups.Locked && i.Lock(in) != groups.Ready {
		in = first
	}
	return in
}

// Before reports whether a, the ClusterInformation of one group, was last written before b, which is locked, of the
// other: then no migration from b's group has made a's ready. Nil is not before another, nor is one before nil. Two with
// the same mark are of one move, whenever b was written. The revisions of both groups' objects are of one etcd, which
// counts the writes of all.
func Before(a, b *api.ClusterInformation) bool {
	if a == nil || b == nil {
		return false
	}
	if mark := a.Annotations[groups.Moving]; mark != "" && mark == b.Annotations[groups.Moving] {
		return false
	}
	first, err := strconv.ParseUint(a.ResourceVersion, 10, 64)
	second, err2 := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return err == nil && err2 == nil && first < second
}

// Find returns the group in which the cluster keeps Calico's objects, and its lock; no group and groups.Absent if there
// is none, as in a new cluster. It reads as Informations does; if both groups are locked, first counts. It makes one
// request more if groups.V3 is ready and groups.V1 locked: Calico's own API server, which has no blocks, shows the
// lock of groups.V1 in groups.V3, and that may have ended between the two reads.
func (s *Store) Find(ctx context.Context, first groups.Group) (groups.Group, groups.Lock, error) {
	said, err := s.Informations(ctx, first)
	if err != nil {
		return "", groups.Absent, err
	}
	in := said.group(first)
	if in == groups.V3 && said.Lock(in) == groups.Ready && said.Lock(groups.V1) == groups.Locked {
		has, err := s.Defined(ctx, in)
		if err != nil {
			return "", groups.Absent, err
		}
		if has == "" {
			in = groups.V1
		}
	}
	return in, said.Lock(in), nil
}

// copied reports whether a move copies the objects of a group, by its ClusterInformation.
func copied(info *api.ClusterInformation) bool {
	m := groups.MarkOf(info.Annotations)
	return m.To == groups.V3 && !m.Switched
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
// Before is the group that this node used last, or empty. If it is groups.V1, which is locked, a groups.V3 that was ready
// before that lock does not count: no migration has written it. If it is groups.V3, which has lost its
// ClusterInformation, it stays: the objects of groups.V1 are outdated, unless a move copies them. If groups.V1 is locked
// and a server of groups.V3 does not answer, as Calico's own one that was left behind, it is groups.V1: the program
// holds its writes, and follows later.
//
// It makes one request in a cluster of groups.V1 that is set up, three in one of groups.V3, four in a new one, and one
// if a group is wanted.
func (s *Store) FindGroup(ctx context.Context, wanted, before groups.Group) (in groups.Group, err error) {
	ask, said := groups.All, Informations{}
	if wanted != "" {
		ask = []groups.Group{wanted}
	} else {
		switch said, err = s.Informations(ctx, groups.V1); {
		case errors.Is(err, datastore.ErrUnavailable) && said.Lock(groups.V1) == groups.Locked && before != groups.V3:
			return groups.V1, nil
		case err != nil:
			return "", err
		}
		in = said.group(cmp.Or(before, groups.V1))
		if said.Lock(groups.V1) == groups.Locked && (before == groups.V1 && Before(said[in], said[before]) ||
			before == groups.V3 && said[before] == nil && !copied(said[groups.V1])) {
			in = before
		}
		if in == groups.V1 {
			return in, nil
		}
		if in != "" {
			ask = []groups.Group{in} // Calico's own API server may have become ready in between
		}
	}
	switch in, err = s.Defined(ctx, ask...); {
	case err != nil || in != "":
		return in, err
	case said.Lock(groups.V1) == groups.Locked:
		return groups.V1, nil
	case wanted != "":
		return "", fmt.Errorf("%w: CALICO_API_GROUP is %s, and the API server has no definition of ipamblocks in it: "+
			"install its definitions, or leave the variable empty, so that the group is found", datastore.ErrNotFound, wanted)
	}
	return "", fmt.Errorf("%w: the API server has a definition of ipamblocks neither in %s nor in %s: the chart installs them",
		datastore.ErrNotFound, groups.V1, groups.V3)
}
