package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	conflict "k8s.io/client-go/util/retry"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// This file does the work of Calico 3.33's controller for DatastoreMigration objects, phase by phase, after its sources
// (kube-controllers/pkg/controllers/migration). It has no APIService to remove, and instead of 10 s between lock and
// copy it waits until the API server refuses the plugins' writes.
//
// Every second migration finds a ClusterInformation in projectcalico.org/v3 that is ready, as a program of Calico's
// makes it that has once run with CALICO_API_GROUP, and a pool that differs, until whose deletion it waits.

// The phases of a DatastoreMigration.
const (
	pending   = "Pending"
	waiting   = "WaitingForConflictResolution"
	migrating = "Migrating"
	converged = "Converged"
	complete  = "Complete"
)

const (
	migratedBy = "migration.projectcalico.org/migrated-by"
	lockedBy   = "migration.projectcalico.org/locked-by"
	// copiers is the number of requests at the same time.
	copiers = 10
)

// copied are the plurals of the copied kinds, in order.
var copied = []string{
	"tiers", "felixconfigurations", "bgpconfigurations", "kubecontrollersconfigurations",
	"ippools", "ipreservations", "bgppeers", "bgpfilters",
	"networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies", "stagedglobalnetworkpolicies", "stagedkubernetesnetworkpolicies",
	"hostendpoints", "networksets", "globalnetworksets",
	"ipamconfigs", "blockaffinities", "ipamblocks", "ipamhandles", "caliconodestatuses",
}

// migration is a DatastoreMigration: the state that outlives a killed controller.
type migration struct{ uid, phase string }

// migrator is a controller of a migration. Its client ends with it.
type migrator struct {
	*migration
	client dynamic.Interface
	locked func(context.Context) error // waits until the API server refuses the plugins' writes
}

// byCalico moves the objects to projectcalico.org/v3 as Calico does, by a controller for each phase, of which the first
// is killed. Sometimes the DatastoreMigration is deleted before it has converged, and another one is created.
func (m *moving) byCalico(ctx context.Context, random *rand.Rand) error {
	requests := map[string]int{pending: 4, waiting: 2, migrating: 50, converged: 2} // bounds for a killed controller
	died := map[string]bool{}
	dm := m.newMigration()
	if m.preceded = !m.preceded; m.preceded {
		if err := m.precede(ctx, dm); err != nil {
			return fmt.Errorf("make objects of projectcalico.org/v3 before the migration: %w", err)
		}
		defer m.alone.Unlock()
	}
	for dm.phase != complete {
		was, allowed := dm.phase, 0
		if !died[was] || random.IntN(3) == 0 {
			died[was], allowed = true, 1+random.IntN(requests[was])
		}
		err := m.control(ctx, dm, allowed, random.IntN(2) == 0, (*migrator).step)
		if err == nil && dm.phase == waiting && was == pending {
			// The agents see the lock, and stay.
			if err := errors.Join(m.seen(ctx, false), m.control(ctx, dm, 0, false, (*migrator).resolve)); err != nil {
				return err
			}
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, errKilled) {
			return fmt.Errorf("phase %s: %w", dm.phase, err)
		}
		m.inc("kills of Calico's controller in " + dm.phase)
		if dm.phase != converged && random.IntN(4) == 0 {
			if err := m.control(ctx, dm, 0, false, (*migrator).abort); err != nil {
				return fmt.Errorf("delete the DatastoreMigration in %s: %w", dm.phase, err)
			}
			m.inc("aborts of Calico's")
			if err := errors.Join(m.followed(ctx), m.started(ctx)); err != nil {
				return err
			}
			dm = m.newMigration()
		}
	}
	return nil
}

func (m *moving) newMigration() *migration {
	return &migration{uid: fmt.Sprintf("dm-%d", time.Now().UnixNano()), phase: pending}
}

// precede makes the objects of before the migration, and keeps kube-controllers from being killed until the caller
// unlocks m.alone: they would start in the group that is ready.
func (m *moving) precede(ctx context.Context, dm *migration) error {
	m.alone.Lock()
	if err := m.control(ctx, dm, 0, false, (*migrator).precede); err != nil {
		m.alone.Unlock()
		return err
	}
	m.inc("migrations beside a ClusterInformation that is ready")
	return nil
}

// errKilled is the error of a controller that was killed.
var errKilled = errors.New("killed")

// control runs a controller that is killed at its request number at: after the API server has it if done, else before.
// 0: it is not killed.
func (m *moving) control(ctx context.Context, dm *migration, at int, done bool, do func(*migrator, context.Context) error) error {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	cfg := rest.CopyConfig(m.kube.admin)
	var made atomic.Int64
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if made.Add(1) != int64(at) {
				return next.RoundTrip(r)
			}
			if done {
				if answer, err := next.RoundTrip(r); err == nil {
					answer.Body.Close()
				}
			}
			kill(errKilled)
			return nil, errKilled
		})
	})
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	err = do(&migrator{migration: dm, client: client, locked: m.refusesPlugins}, ctx)
	if context.Cause(ctx) == errKilled {
		return errKilled
	}
	return err
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// step does the phase's work from its beginning: an earlier controller may have done a part.
func (c *migrator) step(ctx context.Context) error {
	switch c.phase {
	case pending:
		if err := errors.Join(c.setReady(ctx, groups.V1, false), c.locked(ctx)); err != nil {
			return err
		}
		differs, err := c.conflicts(ctx)
		if err != nil {
			return err
		}
		if c.phase = migrating; differs {
			c.phase = waiting
		}
	case waiting:
		differs, err := c.conflicts(ctx)
		if err != nil {
			return err
		}
		if !differs {
			c.phase = pending
		}
	case migrating:
		if err := c.migrate(ctx); err != nil {
			return err
		}
		c.phase = converged
	case converged:
		if err := c.setReady(ctx, groups.V3, true); err != nil {
			return err
		}
		c.phase = complete
	}
	return nil
}

// foreignPool is the pool of precede.
const foreignPool = "move"

// precede makes what is in projectcalico.org/v3 before the migration: the ClusterInformation, and a pool that differs.
func (c *migrator) precede(ctx context.Context) error {
	object := func(kind, name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": string(groups.V3), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
		}}
	}
	pool := object("IPPool", foreignPool, map[string]any{"cidr": "10.64.0.0/24", "blockSize": int64(29), "nodeSelector": "all()",
		"natOutgoing": true})
	info := object("ClusterInformation", api.DefaultName, map[string]any{"datastoreReady": true})
	if _, err := c.of(groups.V3, "ippools").Create(ctx, pool, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := c.of(groups.V3, "clusterinformations").Create(ctx, info, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // an earlier move has left it locked
		return c.setReady(ctx, groups.V3, true)
	}
	return err
}

// conflicts reports whether the foreign pool is there, and differs.
func (c *migrator) conflicts(ctx context.Context) (bool, error) {
	have, err := c.of(groups.V3, "ippools").Get(ctx, foreignPool, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	want, err := c.of(groups.V1, "ippools").Get(ctx, foreignPool, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	c.convert("ippools", want)
	return c.conflict(have, want), nil
}

// resolve removes the foreign pool, as an operator does.
func (c *migrator) resolve(ctx context.Context) error {
	err := c.of(groups.V3, "ippools").Delete(ctx, foreignPool, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// conflict reports whether an object of projectcalico.org/v3 is not of this migration, and differs from one to copy.
func (c *migrator) conflict(have, want *unstructured.Unstructured) bool {
	return have.GetAnnotations()[migratedBy] != c.uid && !reflect.DeepEqual(have.Object["spec"], want.Object["spec"])
}

// migrate locks both groups, and copies.
func (c *migrator) migrate(ctx context.Context) error {
	if err := c.setReady(ctx, groups.V1, false); err != nil {
		return err
	}
	if err := c.lockV3(ctx); err != nil {
		return err
	}
	for _, plural := range copied {
		list, err := c.of(groups.V1, plural).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue // no definition
		}
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(copiers)
		for i := range list.Items {
			g.Go(func() error { return c.copy(gctx, plural, &list.Items[i]) })
		}
		if err := g.Wait(); err != nil {
			return fmt.Errorf("copy %s: %w", plural, err)
		}
	}
	return nil
}

// lockV3 creates the ClusterInformation of projectcalico.org/v3 as a locked copy, or locks the existing one.
func (c *migrator) lockV3(ctx context.Context) error {
	info, err := c.of(groups.V1, "clusterinformations").Get(ctx, api.DefaultName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	c.convert("clusterinformations", info)
	_, err = c.of(groups.V3, "clusterinformations").Create(ctx, info, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	return c.update(ctx, groups.V3, func(info *unstructured.Unstructured) {
		setReady(info, false)
		if notes := info.GetAnnotations(); notes[migratedBy] != c.uid {
			annotate(info, lockedBy, c.uid)
		}
	})
}

// copy creates an object in projectcalico.org/v3. An existing one must be equal.
func (c *migrator) copy(ctx context.Context, plural string, o *unstructured.Unstructured) error {
	c.convert(plural, o)
	in := c.namespaced(groups.V3, plural, o.GetNamespace())
	_, err := in.Create(ctx, o, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	have, err := in.Get(ctx, o.GetName(), metav1.GetOptions{})
	if err == nil && c.conflict(have, o) {
		return fmt.Errorf("conflict: %s has %v, and not %v", o.GetName(), have.Object["spec"], o.Object["spec"])
	}
	return err
}

// convert turns an object of crd.projectcalico.org/v1 into the form that Calico writes to the other group. Like
// Calico's it drops an address's release time, and names a handle by its ID.
func (c *migrator) convert(plural string, o *unstructured.Unstructured) {
	labtest.InGroupOf(groups.V3, o)
	meta := o.Object["metadata"].(map[string]any)
	for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"} {
		delete(meta, field)
	}
	annotate(o, migratedBy, c.uid)
	switch plural {
	case "clusterinformations":
		setReady(o, false)
	case "ipamhandles":
		id, _, _ := unstructured.NestedString(o.Object, "spec", "handleID")
		o.SetName(id)
	case "ipamblocks":
		attributes, _, _ := unstructured.NestedSlice(o.Object, "spec", "attributes")
		for _, a := range attributes {
			delete(a.(map[string]any), "releasedAt")
		}
		_ = unstructured.SetNestedSlice(o.Object, attributes, "spec", "attributes")
	}
}

// abort undoes a migration as the deletion of a DatastoreMigration that has not converged does.
func (c *migrator) abort(ctx context.Context) error {
	for _, plural := range slices.Backward(copied) {
		list, err := c.of(groups.V3, plural).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			if o.GetAnnotations()[migratedBy] != c.uid {
				continue
			}
			err := c.namespaced(groups.V3, plural, o.GetNamespace()).Delete(ctx, o.GetName(), metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	if err := c.setReady(ctx, groups.V1, true); err != nil {
		return err
	}
	return c.abortV3(ctx)
}

// abortV3 deletes the ClusterInformation of projectcalico.org/v3 that this migration has created, and unlocks one that
// it has locked.
func (c *migrator) abortV3(ctx context.Context) error {
	info, err := c.of(groups.V3, "clusterinformations").Get(ctx, api.DefaultName, metav1.GetOptions{})
	if err == nil && info.GetAnnotations()[migratedBy] == c.uid {
		err = c.of(groups.V3, "clusterinformations").Delete(ctx, api.DefaultName, metav1.DeleteOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || info.GetAnnotations()[lockedBy] != c.uid {
		return err
	}
	return c.setReady(ctx, groups.V3, true)
}

func (c *migrator) setReady(ctx context.Context, in groups.Group, ready bool) error {
	return c.update(ctx, in, func(info *unstructured.Unstructured) { setReady(info, ready) })
}

// update changes the ClusterInformation of a group.
func (c *migrator) update(ctx context.Context, in groups.Group, change func(*unstructured.Unstructured)) error {
	of := c.of(in, "clusterinformations")
	return conflict.RetryOnConflict(conflict.DefaultRetry, func() error {
		info, err := of.Get(ctx, api.DefaultName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(info)
		_, err = of.Update(ctx, info, metav1.UpdateOptions{})
		return err
	})
}

func setReady(info *unstructured.Unstructured, ready bool) {
	_ = unstructured.SetNestedField(info.Object, ready, "spec", "datastoreReady")
}

func annotate(o *unstructured.Unstructured, key, value string) {
	all := maps.Clone(o.GetAnnotations())
	if all == nil {
		all = map[string]string{}
	}
	all[key] = value
	o.SetAnnotations(all)
}

func (c *migrator) of(in groups.Group, plural string) dynamic.NamespaceableResourceInterface {
	return c.client.Resource(labtest.KindIn(in, plural))
}

func (c *migrator) namespaced(in groups.Group, plural, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return c.of(in, plural)
	}
	return c.of(in, plural).Namespace(namespace)
}

// newPlugin returns a client with the rights of a node's plugins.
func newPlugin(t testing.TB, k *kube, node string) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(labtest.OnNode(t, k.admin, "tortie-cni", node))
	errtest.Must(t, err)
	return client
}

// refusesPlugins waits until the API server refuses the plugins' writes in crd.projectcalico.org/v1 because it is
// locked.
func (m *moving) refusesPlugins(ctx context.Context) error {
	handle := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": string(groups.V1), "kind": "IPAMHandle", "metadata": map[string]any{"name": "chaos-net.probe"},
		"spec": map[string]any{"handleID": "chaos-net.probe", "block": map[string]any{}},
	}}
	of := m.plugin.Resource(labtest.KindIn(groups.V1, "ipamhandles"))
	return m.until(ctx, "plugins are refused", func() (bool, error) {
		_, err := of.Create(ctx, handle, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || strings.Contains(err.Error(), "tortie-fence-groups") {
			return err != nil, nil
		}
		return false, err
	})
}

// removeV1 deletes all definitions of crd.projectcalico.org, as Calico does when a DatastoreMigration is complete.
func (m *moving) removeV1(ctx context.Context) error {
	client, err := dynamic.NewForConfig(m.kube.admin)
	if err != nil {
		return err
	}
	of := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	return m.until(ctx, "there is no definition of "+api.Group, func() (bool, error) {
		list, err := of.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		left := 0
		for _, o := range list.Items {
			if !strings.HasSuffix(o.GetName(), "."+api.Group) {
				continue
			}
			left++
			if err := of.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return false, err
			}
		}
		return left == 0, nil
	})
}
