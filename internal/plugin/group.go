package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// place is the API group in which a session finds Calico's objects.
type place struct {
	*groups.Current
	// remembered: the group is from this node's GroupFile, which ready checks before any write.
	remembered bool
	// lock, if not nil, is the lock read from ClusterInformation when the group was looked for.
	lock *groups.Lock
}

// findGroup returns the API group of Calico's objects, from the first source that has one: the configuration, the
// agent's facts, this node's GroupFile, the cluster's ClusterInformation. Only the last takes requests: the one that it
// saves ready, and in a cluster of groups.V3 one more, or two if groups.V1 is locked.
func (s *session) findGroup(ctx context.Context, set groups.Group) (groups.Group, error) {
	if set != "" {
		return set, nil
	}
	if s.facts != nil {
		return s.factsGroup(), nil
	}
	if in := facts.ReadGroup(facts.GroupFile); in != "" {
		s.place.remembered = true
		return in, nil
	}
	in, lock, err := s.kube.Find(ctx, groups.V1)
	if err != nil {
		return "", err
	}
	if in == "" {
		return "", errNoInformation
	}
	s.place.lock = &lock
	if err := facts.WriteGroup(facts.GroupFile, in); err != nil {
		s.log.Debug("the next plugin will have to look for the API group of Calico's objects, too", "why", err)
	}
	return in, nil
}

// setGroup returns the group that the configuration names; empty if it names none.
func (s *session) setGroup() groups.Group {
	in, _ := groups.Parse(s.conf.CalicoAPIGroup) // netConf has checked it
	return in
}

// factsGroup returns the group of the facts, which must not be nil.
func (s *session) factsGroup() groups.Group { return cmp.Or(s.facts.Group, groups.V1) }

// dropForeignFacts drops facts of another group than the configuration names: pools, blocks and the lock differ there.
func (s *session) dropForeignFacts() {
	set := s.setGroup()
	if s.facts == nil || set == "" || set == s.factsGroup() {
		return
	}
	s.log.Debug("cannot use the agent's facts, which are of another API group than the configuration names: reading from the API server",
		"facts", s.factsGroup(), "calico_api_group", set)
	s.facts = nil
}

var (
	// errNoInformation: the cluster has not been set up.
	errNoInformation = fmt.Errorf("%w: there is no ClusterInformation default: tortie-node creates it at its first start",
		errDatastoreNotReady)
	// errMoved: Calico's objects are in another group than this node last used.
	errMoved = fmt.Errorf("%w: Calico's objects are now in another API group, and tortie-node has not yet made sure that the addresses "+
		"in use on this node are assigned there", errDatastoreNotReady)
)

// locked returns the lock in ClusterInformation default, and errMoved if the other group's lock is the ready one. Only
// the agent follows a move: it knows which addresses are in use.
func (s *session) locked(ctx context.Context) (groups.Lock, error) {
	var in groups.Group
	if s.conf.DatastoreType == datastoreKubernetes {
		var err error
		if in, err = s.place.Get(ctx); err != nil {
			return groups.Absent, err
		}
	}
	if s.place.lock != nil {
		return *s.place.lock, nil
	}
	info := api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	err := s.store.Get(ctx, &info)
	lock := groups.LockOf(&info)
	if errors.Is(err, datastore.ErrNotFound) {
		lock, err = groups.Absent, errNoInformation
	} else if err != nil {
		return groups.Absent, err
	}
	if lock != groups.Ready && s.place.remembered {
		if other, _ := s.kube.Lock(ctx, in.Other()); other == groups.Ready {
			err = fmt.Errorf("%w: %s", errMoved, in.Other())
		}
	}
	return lock, err
}
