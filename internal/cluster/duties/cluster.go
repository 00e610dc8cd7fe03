package duties

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
)

const (
	// writeTries bounds the read-write cycles on an object that several agents set up at once.
	writeTries = 10
	// writePause lets another agent finish meanwhile.
	writePause = 50 * time.Millisecond
)

// Items of ClusterInformation's clusterType that follow from the product.
const (
	typeKubeadm = "kubeadm" // kubeadm's ConfigMap exists
	typeKDD     = "kdd"     // the datastore is Kubernetes' own
)

// Cluster configures the objects that an agent creates in the datastore if they are missing.
type Cluster struct {
	// Type are items of ClusterInformation's clusterType.
	Type []string
}

// ErrClusterType is SetUp's error when all was done except for clusterType. No program needs that field, and any agent
// of the cluster can fill its limit. An agent must not stay away for it.
var ErrClusterType = errors.New("clusterType stays as it is")

// SetUp creates the objects that plugins, agents and Calico's tools expect, if they do not exist. In a cluster that is
// set up it makes no request. It creates no pools: they decide the routes of all nodes' packets, so no node may create
// one (see MakePools).
//
// Calico creates two more kinds. An absent BGPConfiguration default means the same as an empty one, and the chart,
// which owns the object where its values set it, could not take over an agent's. Tiers belong to network policy, and
// without it not even their definition exists.
func SetUp(ctx context.Context, store datastore.Store, want Cluster, found state.Defaults) error {
	var kubeadm *kubeadm
	if known := found.Information != nil && slices.Contains(strings.Split(found.Information.Spec.ClusterType, ","), typeKDD); !known {
		var err error
		if kubeadm, err = askKubeadm(ctx, store); err != nil {
			return fmt.Errorf("read what kubeadm knows: %w", err)
		}
	}
	incomplete := ensureClusterInformation(ctx, store, found.Information, clusterType(want.Type, kubeadm))
	if incomplete != nil {
		incomplete = fmt.Errorf("set up ClusterInformation: %w", incomplete)
	}
	if incomplete != nil && !errors.Is(incomplete, ErrClusterType) {
		return incomplete
	}
	if !found.IPAMConfig {
		if err := createIfMissing(ctx, store, &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: ipam.DefaultConfig()}); err != nil {
			return fmt.Errorf("set up IPAMConfig or IPAMConfiguration: %w", err)
		}
	}
	if !found.Felix {
		// its definition is not installed
		if err := createIfMissing(ctx, store, defaultFelix()); err != nil && !errors.Is(err, datastore.ErrNotFound) {
			return fmt.Errorf("set up FelixConfiguration: %w", err)
		}
	}
	return incomplete
}

// defaultFelix returns the object that Calico's own agent writes first.
func defaultFelix() *api.FelixConfiguration {
	return &api.FelixConfiguration{
		Meta: api.Meta{Name: api.DefaultName},
		Spec: api.FelixConfigurationSpec{LogSeverityScreen: "Info", ReportingInterval: "0s"},
	}
}

func createIfMissing(ctx context.Context, store datastore.Store, obj api.Resource) error {
	err := store.Create(ctx, obj)
	if errors.Is(err, datastore.ErrExists) {
		return nil
	}
	return err
}

// clusterType returns the items that clusterType should have, in Calico's order.
func clusterType(configured []string, k *kubeadm) []string {
	items := slices.Clone(configured)
	if k != nil && k.found {
		items = append(items, typeKubeadm)
	}
	return append(items, typeKDD)
}

// ensureClusterInformation creates or completes ClusterInformation default. It never writes calicoVersion: calicoctl
// refuses a version that is not its own. It leaves a datastoreReady that is false to the operator.
func ensureClusterInformation(ctx context.Context, store datastore.Store, info *api.ClusterInformation, clusterType []string) error {
	for try := 1; ; try++ {
		missing := info == nil
		if missing {
			info = &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
		}
		usable := info.Spec.ClusterGUID != "" && info.Spec.DatastoreReady != nil
		if !completeClusterInformation(&info.Spec, clusterType) {
			return nil
		}
		write := store.Update
		if missing {
			write = store.Create
		}
		err := write(ctx, info)
		if usable && errors.Is(err, datastore.ErrUnauthorized) && !errors.Is(err, datastore.ErrUnauthenticated) {
			return fmt.Errorf("%w: %w", ErrClusterType, err)
		}
		if !datastore.Contended(err) || try == writeTries {
			return err
		}
		time.Sleep(mathrand.N(writePause))
		info = &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
		switch err := store.Get(ctx, info); {
		case errors.Is(err, datastore.ErrNotFound):
			info = nil
		case err != nil:
			return err
		}
	}
}

// completeClusterInformation sets missing fields, and reports whether it changed anything.
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
