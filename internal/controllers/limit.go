package controllers

import (
	"context"

	"golang.org/x/time/rate"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// limited is a datastore with a rate limit: freeing 30,000 leaked addresses must not delay the requests that start
// pods.
type limited struct {
	store datastore.Store
	rate  *rate.Limiter
}

var _ datastore.Store = (*limited)(nil)

// Get implements datastore.Store.
func (l *limited) Get(ctx context.Context, obj api.Resource) error {
	return l.send(ctx, obj, l.store.Get)
}

// List implements datastore.Store.
func (l *limited) List(ctx context.Context, list api.ResourceList, opts datastore.ListOptions) error {
	if err := l.rate.Wait(ctx); err != nil {
		return err
	}
	return l.store.List(ctx, list, opts)
}

// Create implements datastore.Store.
func (l *limited) Create(ctx context.Context, obj api.Resource) error {
	return l.send(ctx, obj, l.store.Create)
}

// Update implements datastore.Store.
func (l *limited) Update(ctx context.Context, obj api.Resource) error {
	return l.send(ctx, obj, l.store.Update)
}

// Delete implements datastore.Store.
func (l *limited) Delete(ctx context.Context, obj api.Resource) error {
	return l.send(ctx, obj, l.store.Delete)
}

func (l *limited) send(ctx context.Context, obj api.Resource, request func(context.Context, api.Resource) error) error {
	if err := l.rate.Wait(ctx); err != nil {
		return err
	}
	return request(ctx, obj)
}
