package controllers

import (
	"context"

	"golang.org/x/time/rate"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// limited is a datastore of which not more than so much is asked in a second: 30,000 leaked addresses must not become a load for
// those who start pods.
type limited struct {
	store datastore.Store
	rate  *rate.Limiter
}

var _ datastore.Store = (*limited)(nil)

// Get implements datastore.Store.
func (l *limited) Get(ctx context.Context, obj api.Resource) error {
	if err := l.rate.Wait(ctx); err != nil {
		return err
	}
	return l.store.Get(ctx, obj)
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
	if err := l.rate.Wait(ctx); err != nil {
		return err
	}
	return l.store.Create(ctx, obj)
}

// Update implements datastore.Store.
func (l *limited) Update(ctx context.Context, obj api.Resource) error {
	if err := l.rate.Wait(ctx); err != nil {
		return err
	}
	return l.store.Update(ctx, obj)
}

// Delete implements datastore.Store.
func (l *limited) Delete(ctx context.Context, obj api.Resource) error {
	if err := l.rate.Wait(ctx); err != nil {
		return err
	}
	return l.store.Delete(ctx, obj)
}
