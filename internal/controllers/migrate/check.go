package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/controllers"
	"github.com/tortie-net/tortie/internal/datastore"
)

// calico is a program of Calico's that does not follow a move, by the name of its Deployment or DaemonSet.
type calico struct {
	of           api.Type
	name, remedy string
}

var daemonSets = api.Type{Group: "apps", Version: "v1", Kind: "DaemonSet", Plural: "daemonsets", Namespaced: true}

const (
	byMigration = "where it works, move by Calico's DatastoreMigration; else delete it"
	byOperator  = "delete it (with Calico's operator: kubectl delete apiservers.operator.tigera.io default), then: " +
		"kubectl delete apiservice v3.projectcalico.org"
	byHand = "it enforces policies of the group that it found at its start: delete it once no node uses it"
)

var calicos = []calico{
	{controllers.Deployments, controllers.CalicoControllers, byMigration}, {controllers.Deployments, "calico-typha", byMigration},
	{daemonSets, "calico-node", byMigration}, {controllers.Deployments, "calico-apiserver", byOperator},
	{daemonSets, "canal", byHand}, {daemonSets, "rke2-canal", byHand},
}

// migrations are the objects of Calico's own migration, which has two versions.
var migrations = api.Type{Group: "migration.projectcalico.org", Kind: "DatastoreMigration", Plural: "datastoremigrations"}

// apiServices are the kind by which the API server passes a group on to Calico's API server.
var apiServices = api.Type{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService", Plural: "apiservices"}

// check returns why a move must not begin; nil if it may.
func (m *Mover) check(ctx context.Context, s state, to groups.Group) error {
	from := to.Other()
	m.Say("programs count in namespaces kube-system, calico-system and %s (POD_NAMESPACE)", m.Namespace)
	if err := m.checkCalico(ctx); err != nil {
		return err
	}
	if s.lock[from] != groups.Ready {
		return fmt.Errorf("ClusterInformation default of %s does not have datastoreReady: true: unlock it first", from)
	}
	if s.lock[to] == groups.Ready {
		return errors.New("both groups have datastoreReady: true: programs that start use crd.projectcalico.org/v1, others stay: delete " +
			"ClusterInformation default of the group that does not have the objects in use")
	}
	for _, in := range groups.All {
		if has, err := m.Stores[in].Defined(ctx, in); err != nil || has == "" {
			return errors.Join(err, fmt.Errorf("there are no definitions of %s: kubectl apply --server-side -f %s/", in, in.DefinitionsDir()))
		}
	}
	return errors.Join(m.checkKinds(ctx, from), m.checkFollow(ctx, to))
}

// checkKinds requires a definition in the target for each kind of the source: else objects would be left behind.
func (m *Mover) checkKinds(ctx context.Context, from groups.Group) error {
	_, source, err := m.Stores[from].Kinds(ctx)
	if err != nil {
		return err
	}
	_, target, err := m.Stores[from.Other()].Kinds(ctx)
	if err != nil {
		return err
	}
	for _, of := range kinds {
		if slices.Contains(source, of.Plural) && !slices.Contains(target, of.Plural) {
			to := from.Other()
			return fmt.Errorf("%s has no definition of %s: kubectl apply --server-side -f %s/", to, of.Plural, to.DefinitionsDir())
		}
	}
	return nil
}

// try has the API server check, by dry runs, each object that the move would create, the lock of the source and the
// ClusterInformation of the target: validation, admission and quotas. It prints refused objects, and returns an error;
// after twenty it stops. It does not check owners in the target: the move itself creates them.
func (m *Mover) try(ctx context.Context, plans []*plan, info *object, next mark) error {
	to := next.To
	store := m.Stores[to].DryRun()
	var mu sync.Mutex
	var refused []string
	locked := *info
	locked.Annotations = maps.Clone(info.Annotations)
	if err := errors.Join(locked.set(false, next), m.Stores[to.Other()].DryRun().Update(ctx, &locked)); err != nil {
		refused = append(refused, fmt.Sprintf("lock of %s: %v", to.Other(), err))
	}
	if err := store.Create(ctx, convert(info, to, next.ID, nil)); err != nil && !errors.Is(err, datastore.ErrExists) {
		refused = append(refused, fmt.Sprintf("ClusterInformation default: %v", err))
	}
	for i, p := range plans {
		if len(refused) >= shown {
			break
		}
		err := each(ctx, p.create, func(ctx context.Context, o *object) error {
			key := o.key()
			err := store.Create(ctx, o)
			if err == nil || ctx.Err() != nil || errors.Is(err, datastore.ErrUnavailable) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, fmt.Sprintf("%s %s: %v", p.of.Kind, key, err))
			return nil
		})
		if err != nil {
			return fmt.Errorf("try to create %s; nothing was changed: %w", p.of.Plural, err)
		}
		if len(p.create) > 0 {
			m.Say("%d of %d kinds: %s: %d tried", i+1, len(plans), p.of.Plural, len(p.create))
		}
	}
	if len(refused) == 0 {
		return nil
	}
	m.list("refused", refused)
	return fmt.Errorf("the API server refuses %d objects in %s: change them, delete them, or, if a webhook refuses, delete its "+
		"configuration; nothing was changed", len(refused), to)
}

// checkCalico refuses a cluster in which Calico's own programs or its own migration are at work, or in which a webhook
// that they left behind makes the API server refuse policies.
func (m *Mover) checkCalico(ctx context.Context) error {
	if err := m.checkAPIServer(ctx); err != nil {
		return err
	}
	store := m.Stores[groups.V1]
	for _, of := range []api.Type{controllers.Deployments, daemonSets} {
		l := &list{of: of}
		if err := store.List(ctx, l, datastore.ListOptions{NamesOnly: true}); err != nil {
			return fmt.Errorf("look for Calico's programs: list %s: %w", of.Plural, err)
		}
		for _, o := range l.items {
			i := slices.IndexFunc(calicos, func(c calico) bool { return c.of == of && c.name == o.Name })
			if i >= 0 && controllers.Trusted(o.Namespace, m.Namespace) {
				return fmt.Errorf("%s %s is Calico's: %s", of.Kind, o.key(), calicos[i].remedy)
			}
		}
	}
	for _, version := range []string{"v1", "v1beta1"} {
		l := &list{of: migrations}
		l.of.Version = version
		switch err := store.List(ctx, l, datastore.ListOptions{NamesOnly: true}); {
		case errors.Is(err, datastore.ErrNotFound):
		case err != nil:
			return fmt.Errorf("look for Calico's migration: %w", err)
		case len(l.items) > 0:
			return fmt.Errorf("DatastoreMigration %s is there: Calico's own migration is under way, or was not ended", l.items[0].Name)
		}
	}
	dead, err := controllers.DeadWebhooks(ctx, store)
	for _, d := range dead {
		err = errors.Join(err, errors.New(d.Text))
	}
	return err
}

// checkAPIServer returns an error while Calico's API server has projectcalico.org/v3: it shows objects of
// crd.projectcalico.org/v1 there, and hides those that definitions would have.
func (m *Mover) checkAPIServer(ctx context.Context) error {
	o := &object{of: apiServices, Meta: api.Meta{Name: "v3.projectcalico.org"}}
	err := m.Stores[groups.V1].Get(ctx, o)
	var spec struct {
		Service *struct{ Namespace, Name string }
	}
	switch {
	case errors.Is(err, datastore.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("look for Calico's API server: %w", err)
	case json.Unmarshal(o.Spec, &spec) == nil && spec.Service != nil:
		return fmt.Errorf("projectcalico.org/v3 is passed on to Calico's API server, Service %s/%s (APIService v3.projectcalico.org): %s",
			spec.Service.Namespace, spec.Service.Name, byOperator)
	}
	return nil
}
