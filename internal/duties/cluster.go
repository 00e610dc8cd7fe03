package duties

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
)

// defaultPoolName is the name that Calico gives to the default IPv4 pool.
const defaultPoolName = "default-ipv4-ippool"

// dutyTries bounds how often an object that several agents set up at once is read and written again.
const dutyTries = 10

// SetUp makes the objects that plugins and other agents expect, if nobody has made them yet. It is idempotent, and
// any number of agents may do it at the same time.
func SetUp(ctx context.Context, store datastore.Store, clusterType []string, pool *api.IPPoolSpec) error {
	if err := ensureClusterInformation(ctx, store, clusterType); err != nil {
		return fmt.Errorf("set up ClusterInformation: %w", err)
	}
	config := &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: ipam.DefaultConfig()}
	if err := createIfMissing(ctx, store, config); err != nil {
		return fmt.Errorf("set up IPAMConfig: %w", err)
	}
	if err := ensureDefaultPool(ctx, store, pool); err != nil {
		return fmt.Errorf("set up the default IPPool: %w", err)
	}
	return nil
}

func createIfMissing(ctx context.Context, store datastore.Store, obj api.Resource) error {
	err := store.Create(ctx, obj)
	if errors.Is(err, datastore.ErrExists) {
		return nil
	}
	return err
}

// ensureClusterInformation makes the object that says that the datastore may be used. It never writes calicoVersion:
// calicoctl refuses to work with a version that is not its own. A datastoreReady that is false belongs to an operator.
func ensureClusterInformation(ctx context.Context, store datastore.Store, clusterType []string) error {
	for try := 1; ; try++ {
		info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
		err := store.Get(ctx, info)
		missing := errors.Is(err, datastore.ErrNotFound)
		if err != nil && !missing {
			return err
		}
		if !completeClusterInformation(&info.Spec, clusterType) {
			return nil
		}
		if missing {
			err = store.Create(ctx, info)
		} else {
			err = store.Update(ctx, info)
		}
		if !datastore.Contended(err) || try == dutyTries {
			return err
		}
	}
}

// completeClusterInformation fills in what is not set and reports whether it changed anything.
func completeClusterInformation(s *api.ClusterInformationSpec, clusterType []string) (changed bool) {
	if s.ClusterGUID == "" {
		guid := make([]byte, 16)
		_, _ = rand.Read(guid) // never fails
		s.ClusterGUID, changed = hex.EncodeToString(guid), true
	}
	if s.DatastoreReady == nil {
		ready := true
		s.DatastoreReady, changed = &ready, true
	}
	have := strings.FieldsFunc(s.ClusterType, func(r rune) bool { return r == ',' })
	for _, t := range clusterType {
		if !slices.Contains(have, t) {
			have, changed = append(have, t), true
		}
	}
	s.ClusterType = strings.Join(have, ",")
	return changed
}

// ensureDefaultPool makes the default pool if the cluster has no IPv4 pool at all.
func ensureDefaultPool(ctx context.Context, store datastore.Store, spec *api.IPPoolSpec) error {
	if spec == nil {
		return nil
	}
	var pools api.IPPoolList
	if err := store.List(ctx, &pools, datastore.ListOptions{}); err != nil {
		return err
	}
	for _, p := range pools.Items {
		if cidr, err := netip.ParsePrefix(p.Spec.CIDR); err == nil && cidr.Addr().Is4() {
			return nil
		}
	}
	return createIfMissing(ctx, store, &api.IPPool{Meta: api.Meta{Name: defaultPoolName}, Spec: *spec})
}
