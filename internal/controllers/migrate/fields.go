package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
)

// managed is an object, reduced to the owners of its fields (server-side apply).
type managed struct {
	api.Meta `json:"-"`
	Metadata struct {
		Name, Namespace string
		ManagedFields   []map[string]any
	}
	of api.Type
}

// ResourceType implements api.Resource.
func (o *managed) ResourceType() api.Type { return o.of }

// owners returns the owners of an object's fields, for a group; nil unless one has applied fields, as Helm does. Owners
// of the status are left out: it is not moved.
func (o *managed) owners(in groups.Group) (all []map[string]any) {
	applied := false
	for _, owner := range o.Metadata.ManagedFields {
		if owner["subresource"] == nil {
			owner["apiVersion"] = string(in)
			all = append(all, owner)
			applied = applied || owner["operation"] == "Apply"
		}
	}
	if !applied {
		return nil
	}
	return all
}

// handOver sets the field owners of objects in the target to those in the source. Else appliers such as Helm would
// conflict with the move as soon as they change a field.
func (m *Mover) handOver(ctx context.Context, to groups.Group) error {
	_, served, err := m.Stores[to.Other()].Kinds(ctx)
	if err != nil {
		return err
	}
	for _, of := range kinds {
		if !slices.Contains(served, of.Plural) {
			continue
		}
		l := &managedList{of: of}
		if err := m.Stores[to.Other()].List(ctx, l, datastore.ListOptions{}); err != nil {
			return fmt.Errorf("list %s: %w", of.Plural, err)
		}
		err := each(ctx, l.items, func(ctx context.Context, o *managed) error {
			owners := o.owners(to)
			if owners == nil {
				return nil
			}
			patch := map[string]any{"metadata": map[string]any{"managedFields": owners}}
			err := m.Stores[to].MergePatch(ctx, &object{of: of, Meta: api.Meta{Name: o.Metadata.Name, Namespace: o.Metadata.Namespace}}, patch)
			if errors.Is(err, datastore.ErrNotFound) { // another name, see MoveName
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// managedList is all objects of a kind.
type managedList struct {
	of    api.Type
	items []*managed
}

// ItemType implements api.ResourceList.
func (l *managedList) ItemType() api.Type { return l.of }

// NewItem implements api.ResourceList.
func (l *managedList) NewItem() api.Resource { return &managed{of: l.of} }

// Add implements api.ResourceList.
func (l *managedList) Add(item api.Resource) {
	if o, ok := item.(*managed); ok {
		l.items = append(l.items, o)
	}
}
