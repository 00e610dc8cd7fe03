package ipam

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
)

// contents is all that a datastore holds of IPAM.
type contents struct {
	blocks     []*Block
	handles    map[string]*api.IPAMHandle
	affinities map[string]*api.BlockAffinity
}

// readContents finishes deletions that dead processes left half done, as every reader does, before it reads.
func readContents(store datastore.Store) (contents, error) {
	ctx := context.Background()
	c := contents{handles: map[string]*api.IPAMHandle{}, affinities: map[string]*api.BlockAffinity{}}
	var blocks api.IPAMBlockList
	var handles api.IPAMHandleList
	var affinities api.BlockAffinityList
	for _, list := range []api.ResourceList{&blocks, &handles, &affinities} {
		if err := store.List(ctx, list, datastore.ListOptions{}); err != nil {
			return c, err
		}
	}
	for i := range blocks.Items {
		b, err := ParseBlock(&blocks.Items[i])
		if err != nil {
			return c, err
		}
		c.blocks = append(c.blocks, b)
	}
	for i := range handles.Items {
		c.handles[handles.Items[i].Spec.HandleID] = &handles.Items[i]
	}
	for i := range affinities.Items {
		c.affinities[affinities.Items[i].Name] = &affinities.Items[i]
	}
	return c, nil
}

// holders returns the handle that holds each address; overlapping blocks, which make it ambiguous, are an error.
func (c contents) holders() (map[netip.Addr]string, error) {
	held := map[netip.Addr]string{}
	for i, b := range c.blocks {
		for _, other := range c.blocks[:i] {
			if b.cidr.Overlaps(other.cidr) {
				return nil, fmt.Errorf("blocks %s and %s overlap", b.cidr, other.cidr)
			}
		}
		for ordinal, at := range b.obj.Spec.Allocations {
			if at != nil && b.obj.Spec.Attributes[*at].ReleasedAt == "" {
				held[b.addr(ordinal)] = *b.obj.Spec.Attributes[*at].HandleID
			}
		}
	}
	return held, nil
}

// audit checks that the datastore holds exactly the given handles with exactly their addresses, that handles and blocks
// agree, and that each owned block has its owner's claim. It returns all that is wrong.
func audit(store datastore.Store, live map[string][]netip.Addr) error {
	c, err := readContents(store)
	if err != nil {
		return err
	}
	if err := c.auditHandles(live); err != nil {
		return err
	}
	if wrong := c.unclaimed(); len(wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return nil
}

// auditHandles is audit without a look at the claims.
func (c contents) auditHandles(live map[string][]netip.Addr) error {
	held, err := c.holders()
	if err != nil {
		return err
	}
	var wrong []string
	count := map[string]map[string]int{}
	for a, handle := range held {
		if !slices.Contains(live[handle], a) {
			wrong = append(wrong, fmt.Sprintf("%s is held by %s, which was not given it", a, handle))
		}
		b := c.blockOf(a)
		if count[handle] == nil {
			count[handle] = map[string]int{}
		}
		count[handle][b.cidr.String()]++
	}
	for handle, addrs := range live {
		for _, a := range addrs {
			if held[a] != handle {
				wrong = append(wrong, fmt.Sprintf("%s was given to %s and is held by %q", a, handle, held[a]))
			}
		}
		if c.handles[handle] == nil {
			wrong = append(wrong, fmt.Sprintf("handle %s is missing", handle))
		}
	}
	for id, h := range c.handles {
		if !maps.Equal(h.Spec.Block, count[id]) {
			wrong = append(wrong, fmt.Sprintf("handle %s says %v, the blocks say %v", id, h.Spec.Block, count[id]))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("%s", strings.Join(wrong, "\n"))
}

func (c contents) blockOf(a netip.Addr) *Block {
	i := slices.IndexFunc(c.blocks, func(b *Block) bool { return b.cidr.Contains(a) })
	return c.blocks[i]
}

// unclaimed returns the owned blocks that their owner does not claim.
func (c contents) unclaimed() []string {
	var wrong []string
	for _, b := range c.blocks {
		if b.Orphan() {
			continue
		}
		host := strings.TrimPrefix(*b.obj.Spec.Affinity, "host:")
		if c.affinities[names.Affinity(host, b.cidr)] == nil {
			wrong = append(wrong, fmt.Sprintf("block %s belongs to %s, which has no claim", b.cidr, host))
		}
	}
	return wrong
}

// dump writes the whole datastore for a failed test.
func dump(store datastore.Store) string {
	c, err := readContents(store)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, b := range c.blocks {
		out = append(out, describe(b.obj))
	}
	for _, h := range c.handles {
		out = append(out, describe(h))
	}
	for _, a := range c.affinities {
		out = append(out, describe(a))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// seed fills a datastore with a pool of four blocks of four addresses per family, three nodes, and more objects.
func seed(t testing.TB, store datastore.Store, objs ...api.Resource) {
	t.Helper()
	mustCreate(t, store, poolObject("pool-a", "10.0.0.0/28"), poolObject("pool-v6", "fd00::/124"))
	for _, host := range hosts {
		mustCreate(t, store, &api.Node{Meta: api.Meta{Name: host}})
	}
	mustCreate(t, store, objs...)
}

// seeded is a fake that seed has filled.
func seeded(t testing.TB, objs ...api.Resource) *datastoretest.Fake {
	t.Helper()
	store := datastoretest.NewFake()
	seed(t, store, objs...)
	return store
}

var hosts = []string{"node-a", "node-b", "node-c"}

func client(store datastore.Store) *Client {
	return NewClient(store, func() time.Time { return clock })
}

func podRequest(host, handle string) Request {
	return Request{Owner: owner(handle), Host: host, V4: true, Use: api.UseWorkload}
}

func addresses(assigned []Assignment) []netip.Addr {
	var out []netip.Addr
	for _, a := range assigned {
		out = append(out, a.Address)
	}
	return out
}
