package migrate

import (
	"context"
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

// calicos are Calico's programs that keep to the group that they found at their start, by kind.
var calicos = map[api.Type][]string{
	controllers.Deployments: {controllers.CalicoControllers, "calico-typha"},
	{Group: "apps", Version: "v1", Kind: "DaemonSet", Plural: "daemonsets", Namespaced: true}: {"calico-node"},
}

// migrations are the objects of Calico's own migration.
var migrations = api.Type{Group: "migration.projectcalico.org", Version: "v1", Kind: "DatastoreMigration", Plural: "datastoremigrations"}

// check returns why a move must not begin; nil if it may.
func (m *Mover) check(ctx context.Context, s state, to groups.Group) error {
	from := to.Other()
	if s.lock[from] != groups.Ready {
		return fmt.Errorf("ClusterInformation default of %s does not have datastoreReady: true: unlock it first", from)
	}
	if s.lock[to] == groups.Ready {
		return fmt.Errorf("both groups have datastoreReady: true: set that of ClusterInformation default of %s to false, as it is not in use", to)
	}
	for _, in := range groups.All {
		if has, err := m.Stores[in].Defined(ctx, in); err != nil || has == "" {
			return errors.Join(err, fmt.Errorf("there are no definitions of %s: kubectl apply --server-side -f %s/", in, in.DefinitionsDir()))
		}
	}
	return errors.Join(m.checkKinds(ctx, from), m.checkCalico(ctx), m.checkFollow(ctx, to))
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
	store := m.Stores[groups.V1]
	for of, names := range calicos {
		l := &list{of: of}
		if err := store.List(ctx, l, datastore.ListOptions{NamesOnly: true}); err != nil {
			return fmt.Errorf("look for Calico's programs: list %s: %w", of.Plural, err)
		}
		for _, o := range l.items {
			if slices.Contains(names, o.Name) {
				return fmt.Errorf("%s %s is Calico's: where it works, move by Calico's DatastoreMigration; else delete it", of.Kind, o.key())
			}
		}
	}
	l := &list{of: migrations}
	switch err := store.List(ctx, l, datastore.ListOptions{NamesOnly: true}); {
	case errors.Is(err, datastore.ErrNotFound):
	case err != nil:
		return fmt.Errorf("look for Calico's migration: %w", err)
	case len(l.items) > 0:
		return fmt.Errorf("DatastoreMigration %s is there: Calico's own migration is under way, or was not ended", l.items[0].Name)
	}
	dead, err := controllers.DeadWebhooks(ctx, store)
	for _, d := range dead {
		err = errors.Join(err, errors.New(d.Text))
	}
	return err
}
