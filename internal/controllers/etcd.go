package controllers

import (
	"context"
	"log/slog"

	"github.com/tortie-net/tortie/internal/inventory"
)

// etcdDuties is what there is to do on etcd beside addresses.
type etcdDuties interface{}

// etcdKeeper looks after addresses that are in etcd.
type etcdKeeper struct {
	store Etcd
	log   *slog.Logger
}

func (k *etcdKeeper) view(ctx context.Context, v inventory.View) (inventory.View, error) {
	return v, nil
}

func (k *etcdKeeper) sync(ctx context.Context, v *inventory.View, s Settings) error { return nil }
