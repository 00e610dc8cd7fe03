package etcd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Store is the datastore in etcd. It implements datastore.Store: each write is a transaction that compares the revision
// in which the key was last changed.
type Store struct {
	client *client
	now    func() time.Time
}

var _ datastore.Store = (*Store)(nil)

// New returns a Store. It makes no request.
func New(cfg Config) (*Store, error) {
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	return &Store{client: c, now: time.Now}, nil
}

// Get implements datastore.Store.
func (s *Store) Get(ctx context.Context, obj api.Resource) error {
	key, err := keyOf(obj)
	if err != nil {
		return err
	}
	kv, err := s.read(ctx, key)
	if err != nil {
		return err
	}
	found := api.NewLike(obj)
	if err := decode(found, kv); err != nil {
		return err
	}
	if api.Marked(found) {
		if err := s.Delete(ctx, found); err != nil {
			return fmt.Errorf("finish the deletion of %s: %w", key, err)
		}
		return fmt.Errorf("get %s: %w: it was marked deleted", key, datastore.ErrNotFound)
	}
	api.Assign(obj, found)
	return nil
}

func (s *Store) read(ctx context.Context, key string) (keyValue, error) {
	found, err := s.find(ctx, "get "+key, rangeRequest{key: key})
	switch {
	case err != nil:
		return keyValue{}, err
	case len(found.kvs) == 0:
		return keyValue{}, fmt.Errorf("get %s: %w", key, datastore.ErrNotFound)
	}
	return found.kvs[0], nil
}

// find reads a range of keys; what describes the read in errors.
func (s *Store) find(ctx context.Context, what string, req rangeRequest) (rangeResponse, error) {
	data, err := s.client.call(ctx, rpc{method: methodRange, msg: req.encode(), what: what, read: true})
	if err != nil {
		return rangeResponse{}, err
	}
	found, err := decodeRange(data)
	if err != nil {
		return rangeResponse{}, fmt.Errorf("%s: %w", what, err)
	}
	return found, nil
}

// List implements datastore.Store. A stale list is answered by the member that is asked, without the others.
func (s *Store) List(ctx context.Context, list api.ResourceList, opts datastore.ListOptions) error {
	prefix, err := listPrefix(list.ItemType(), opts.Host)
	if err != nil {
		return err
	}
	return s.listPrefix(ctx, list, prefix, opts)
}

// ListNamed appends to list the objects in a namespace with a name prefix. The kind must be a namespaced one.
func (s *Store) ListNamed(ctx context.Context, list api.ResourceList, namespace, prefix string) error {
	kind, err := resourcePrefix(list.ItemType())
	if err != nil {
		return err
	}
	return s.listPrefix(ctx, list, kind+namespace+"/"+prefix, datastore.ListOptions{})
}

func (s *Store) listPrefix(ctx context.Context, into api.ResourceList, prefix string, opts datastore.ListOptions) error {
	req := rangeRequest{key: prefix, end: prefixEnd(prefix), serializable: opts.Stale, keysOnly: opts.NamesOnly}
	found, err := s.find(ctx, "list "+prefix, req)
	if err != nil {
		return err
	}
	for _, kv := range found.kvs {
		if err := collect(into, kv, opts.NamesOnly); err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
	}
	return nil
}

// collect adds the object of a key. It passes over a key of another kind with the same prefix.
func collect(into api.ResourceList, kv keyValue, nameOnly bool) error {
	item := into.NewItem()
	if !identify(item, kv.key) {
		return nil
	}
	if nameOnly {
		m := api.Meta{Name: item.GetMeta().Name, Namespace: item.GetMeta().Namespace, ResourceVersion: strconv.FormatInt(kv.revision, 10)}
		item = into.NewItem()
		*item.GetMeta() = m
	} else if err := decode(item, kv); err != nil {
		return err
	}
	into.Add(item)
	return nil
}

// Create implements datastore.Store. Objects that users write get a UID and a time of creation, as from Calico's
// client.
func (s *Store) Create(ctx context.Context, obj api.Resource) error {
	created := api.NewLike(obj)
	api.Assign(created, obj)
	if m := created.GetMeta(); keepsMeta(obj) && m.UID == "" {
		m.UID, m.CreationTimestamp = newUID(), s.now().UTC().Format(time.RFC3339)
	}
	value, err := encode(created)
	if err != nil {
		return err
	}
	done, err := s.commit(ctx, "create", obj, txnRequest{put: true, value: value})
	if err != nil {
		return err
	}
	if !done.succeeded {
		return fmt.Errorf("create %s %s: %w", obj.ResourceType().Kind, obj.GetMeta().Name, datastore.ErrExists)
	}
	*obj.GetMeta() = *created.GetMeta()
	obj.GetMeta().ResourceVersion = strconv.FormatInt(done.revision, 10)
	return nil
}

// keepsMeta reports whether the value has the object's metadata.
func keepsMeta(obj api.Resource) bool {
	switch obj.(type) {
	case *api.IPAMBlock, *api.BlockAffinity, *api.IPAMHandle, *api.IPAMConfig:
		return false
	}
	return true
}

// newUID returns a random UUID (RFC 9562, version 4).
func newUID() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails: it ends the program instead
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Update implements datastore.Store. Fields that other programs keep in an object that users write stay.
func (s *Store) Update(ctx context.Context, obj api.Resource) error {
	rev, err := revision("update", obj)
	if err != nil {
		return err
	}
	value, err := s.nextValue(ctx, obj, rev)
	if err != nil {
		return err
	}
	done, err := s.commit(ctx, "update", obj, txnRequest{guard: guard{revision: rev}, put: true, value: value})
	if err != nil {
		return err
	}
	if !done.succeeded {
		return fmt.Errorf("update %s %s: %w", obj.ResourceType().Kind, obj.GetMeta().Name, datastore.ErrConflict)
	}
	obj.GetMeta().ResourceVersion = strconv.FormatInt(done.revision, 10)
	return nil
}

// nextValue encodes an object that replaces the revision rev of itself.
func (s *Store) nextValue(ctx context.Context, obj api.Resource, rev int64) ([]byte, error) {
	next, err := encode(obj)
	if err != nil || !keepsMeta(obj) {
		return next, err
	}
	key, err := keyOf(obj)
	if err != nil {
		return nil, err
	}
	have, err := s.read(ctx, key)
	if errors.Is(err, datastore.ErrNotFound) || err == nil && have.revision != rev {
		return nil, fmt.Errorf("update %s: %w", key, datastore.ErrConflict)
	}
	if err != nil {
		return nil, err
	}
	decoded := api.NewLike(obj)
	if err := decode(decoded, have); err != nil {
		return nil, err
	}
	known, err := encode(decoded)
	if err != nil {
		return nil, err
	}
	return carry(have.value, known, next)
}

// Delete implements datastore.Store.
func (s *Store) Delete(ctx context.Context, obj api.Resource) error {
	rev, err := revision("delete", obj)
	if err != nil {
		return err
	}
	done, err := s.commit(ctx, "delete", obj, txnRequest{guard: guard{revision: rev}})
	if err != nil || done.succeeded || !done.existed {
		return err
	}
	return fmt.Errorf("delete %s %s: %w", obj.ResourceType().Kind, obj.GetMeta().Name, datastore.ErrConflict)
}

// commit sends a transaction on the key of obj.
func (s *Store) commit(ctx context.Context, verb string, obj api.Resource, t txnRequest) (txnResponse, error) {
	key, err := keyOf(obj)
	if err != nil {
		return txnResponse{}, err
	}
	t.guard.key = key
	r := rpc{method: methodTxn, msg: t.encode(), what: verb + " " + key}
	data, err := s.client.call(ctx, r)
	if err != nil {
		return txnResponse{}, err
	}
	done, err := decodeTxn(data)
	if err != nil {
		return txnResponse{}, fmt.Errorf("%s: %w: %w", r.what, datastore.ErrUnavailable, err)
	}
	return done, nil
}

// revision returns the revision that guards a write.
func revision(verb string, obj api.Resource) (int64, error) {
	text := obj.GetMeta().ResourceVersion
	rev, err := strconv.ParseInt(text, 10, 64)
	if err != nil || rev <= 0 {
		return 0, fmt.Errorf("%s %s %s: its resourceVersion %q is no revision of etcd: read it first",
			verb, obj.ResourceType().Kind, obj.GetMeta().Name, text)
	}
	return rev, nil
}
