package rights

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/controllers/migrate"
	datastore "github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// writable are objects that a node may create in a cluster that runs on the scene's group.
func (s *scene) writable(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	const cidr = "10.98.0.0/28"
	return map[string]*unstructured.Unstructured{
		"its affinity":       s.affinity(names.Affinity(s.thief, netip.MustParsePrefix(cidr)), s.thief, cidr),
		"its block":          emptied(s.block(t, 210, "host:"+s.thief)),
		"its handle":         s.handle("net.groups", s.thief),
		"ClusterInformation": s.object(t, `{kind: ClusterInformation, metadata: {name: default}, spec: {datastoreReady: true}}`),
		"FelixConfiguration": s.object(t, `{kind: FelixConfiguration, metadata: {name: default}, spec: {}}`),
		"IPAMConfig": s.object(t, `{kind: IPAMConfig, metadata: {name: default},
			spec: {autoAllocateBlocks: true, strictAffinity: false}}`),
		"FelixConfiguration's": s.felix(t, "Auto", "Disabled"),
	}
}

// felix returns a FelixConfiguration with the fields that Calico's definitions fill in.
func (s *scene) felix(t *testing.T, mode, offload string) *unstructured.Unstructured {
	t.Helper()
	return s.object(t, `{kind: FelixConfiguration, metadata: {name: default},
		spec: {logSeverityScreen: Info, nftablesMode: %s, nftablesFlowTableOffload: %s}}`, mode, offload)
}

func (s *scene) dryCreate(t *testing.T, obj *unstructured.Unstructured) error {
	t.Helper()
	_, err := s.agent.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: dryRun})
	return err
}

// Calico's definitions fill in fields that the agent does not write, with these values and no others.
func TestFilledInFields(t *testing.T) { inEachGroup(t, testFilledInFields) }

func testFilledInFields(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	passed(t, "Calico's defaults", s.dryCreate(t, s.felix(t, "Auto", "Disabled")))
	refused(t, "another mode", s.dryCreate(t, s.felix(t, "Enabled", "Disabled")))
	refused(t, "the flowtable", s.dryCreate(t, s.felix(t, "Auto", "Enabled")))
}

// The ClusterInformation default of a group, as YAML. OTHER and OWN are the names of the groups.
const (
	absent  = ""
	ready   = "spec: {datastoreReady: true}"
	closed  = "spec: {datastoreReady: false}" // by an operator, or by Calico's migration
	copying = `metadata: {annotations: {tortie.net/migrating: '{"to":"OTHER","id":"a"}'}}, ` + closed
	left    = `metadata: {annotations: {tortie.net/migrating: '{"to":"OTHER","id":"a","switched":true}'}}, ` + closed
	entered = `metadata: {annotations: {tortie.net/migrating: '{"to":"OWN","id":"a","switched":true}'}}, ` + ready
)

// In a cluster with the definitions of both groups, the ClusterInformation of each decides what a node writes in which
// group: addresses, the first settings, or the ClusterInformation itself.
func TestGroupsInForce(t *testing.T) {
	s := newScene(t)
	scenes := s.inBoth(t)
	tries := map[groups.Group]map[string]func(*user) error{}
	for in, there := range scenes {
		tries[in] = there.attempts(t)
	}
	for _, row := range []struct {
		when       string
		v1, v3     string
		inV1, inV3 string // what nodes write
	}{
		{"new cluster", absent, absent, "addresses settings information", "addresses settings information"},
		{"v1 in use", ready, absent, "addresses settings", ""},
		{"v1 in use behind Calico's API server", ready, ready, "addresses settings", ""},
		{"v1 locked", closed, absent, "settings", "addresses settings"}, // and nothing tells by whom: docs/design/fencing.md
		{"a move to v3 copies", copying, absent, "settings", ""},
		{"a move to v3 copies, and another program has created the ClusterInformation", copying, ready, "settings", ""},
		{"Calico's migration copies", closed, closed, "settings", "settings"},
		{"Calico's migration is over", closed, ready, "settings", "addresses settings"},
		{"a move to v3 is over", left, entered, "settings", "addresses settings"},
		{"a move to v3 is over, and v3 locked", left, closed, "settings", "settings"},
		{"v3 in use", absent, ready, "addresses settings", "addresses settings"},
		{"v3 locked", absent, closed, "addresses settings", "settings"},
		{"a move to v1 copies", absent, copying, "", "settings"},
		{"a move to v1 copies, and another program has created the ClusterInformation", ready, copying, "", ""},
		{"a move to v1 is aborted", left, entered, "settings", "addresses settings"},
		{"a move to v1 is over", entered, left, "addresses settings", ""},
	} {
		scenes[groups.V1].become(t, row.v1)
		scenes[groups.V3].become(t, row.v3)
		meshtest.Eventually(t, func() error { // until admission has observed both
			err := errors.Join(scenes[groups.V1].wrong(t, tries[groups.V1], row.inV1), scenes[groups.V3].wrong(t, tries[groups.V3], row.inV3))
			if err != nil {
				return fmt.Errorf("%s: %w", row.when, err)
			}
			return nil
		})
	}
}

// TestFenceOfAMove: what kube-controllers migrate writes into the source closes the target to nodes, in either direction.
func TestFenceOfAMove(t *testing.T) {
	server := labtest.NewServerOf(t, groups.V1)
	server.Define(t, groups.V3)
	scenes := fencedScene(t, restConfig(t, server), groups.V1).inBoth(t)
	stores := map[groups.Group]*datastore.Store{}
	for in := range scenes {
		cfg, err := datastore.LoadKubeconfig(server.Kubeconfig())
		errtest.Must(t, err)
		cfg.Group = groups.In(in)
		stores[in], err = datastore.New(cfg)
		errtest.Must(t, err)
	}
	for _, to := range groups.All {
		source, target := scenes[to.Other()], scenes[to]
		source.become(t, ready)
		ctx, stop := context.WithCancel(t.Context())
		mover := migrate.New(stores, func(format string, args ...any) {
			if t.Logf(format, args...); strings.Contains(format, "waiting") {
				stop() // the copy is equal, and requests in flight may change it
			}
		})
		if err := mover.Start(ctx, to); !errors.Is(err, context.Canceled) {
			t.Fatalf("move to %s: %v", to, err)
		}
		meshtest.Eventually(t, func() error { return errors.Join(source.wrong(t, nil, "settings"), target.wrong(t, nil, "")) })
		errtest.Must(t, mover.Abort(t.Context()))
		meshtest.Eventually(t, func() error { return source.wrong(t, nil, "addresses settings") })
		source.become(t, absent)
		target.become(t, absent)
	}
}

// inBoth returns the scene in each group.
func (s *scene) inBoth(t *testing.T) map[groups.Group]*scene {
	t.Helper()
	both := map[groups.Group]*scene{}
	for _, in := range groups.All {
		there := *s
		there.group = in
		there.awaitParameters(t)
		both[in] = &there
	}
	return both
}

// become replaces the ClusterInformation of the scene's group.
func (s *scene) become(t *testing.T, info string) {
	t.Helper()
	names := strings.NewReplacer("OTHER", string(s.group.Other()), "OWN", string(s.group))
	obj := s.object(t, `{kind: ClusterInformation, %s}`, names.Replace(info))
	obj.SetName("default")
	err := s.admin.of(obj).Delete(t.Context(), "default", metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if info != absent {
		s.admin.create(t, obj)
	}
}

// wrong returns the writes in the scene's group that are not answered as they should be: those of the words in allowed
// pass, the chart's policies refuse the others. It leaves out a ClusterInformation that exists.
func (s *scene) wrong(t *testing.T, tries map[string]func(*user) error, allowed string) (all error) {
	t.Helper()
	is := func(what, of string, err error) {
		if apierrors.IsAlreadyExists(err) && of == "information" {
			return
		}
		denied := err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'tortie-fence-groups")
		if want := !strings.Contains(allowed, of); denied != want || err != nil && !denied {
			all = errors.Join(all, fmt.Errorf("%s in %s: refused %v (%w), want %v", what, s.group, denied, errors.Join(errAnswer, err), want))
		}
	}
	for what, try := range tries {
		is(what, "addresses", try(s.plugin))
	}
	for what, obj := range s.writable(t) {
		of := "addresses"
		switch what, _, _ := strings.Cut(what, "Conf"); what {
		case "ClusterInformation":
			of = "information"
		case "Felix", "IPAM":
			of = "settings"
		}
		is("create "+what, of, s.dryCreate(t, obj))
	}
	return all
}

// TestSecondGroupAlone takes one server that has no definitions of the first group through what depends on that.
func TestSecondGroupAlone(t *testing.T) {
	server := labtest.NewServerOf(t, groups.V3)
	t.Run("fence", func(t *testing.T) { testFenceOfSecondGroup(t, restConfig(t, server)) })
	t.Run("defaults of policies", func(t *testing.T) { testPolicyDefaults(t, server) })
}

// fencedScene returns a scene without pods and without the victim's Node on another server than the shared one.
func fencedScene(t *testing.T, cfg *rest.Config, group groups.Group) *scene {
	t.Helper()
	labtest.Fence(t, cfg)
	s := &scene{group: group, admin: newUser(t, cfg), cfg: cfg, thief: "thief", victim: "victim"}
	s.admin.declare(t, s.thief)
	s.agent = newUser(t, labtest.OnNode(t, cfg, "tortie-node", s.thief))
	s.plugin = newUser(t, labtest.OnNode(t, cfg, "tortie-cni", s.thief))
	s.awaitParameters(t)
	return s
}

// Without the definitions of the first group's parameters nodes write, and are fenced.
func testFenceOfSecondGroup(t *testing.T, cfg *rest.Config) {
	s := fencedScene(t, cfg, groups.V3)
	for what, obj := range s.writable(t) {
		passed(t, "create "+what, s.dryCreate(t, obj))
	}
	refused(t, "another's block", s.dryCreate(t, emptied(s.block(t, 211, "host:"+s.victim))))
	refused(t, "another's handle", s.dryCreate(t, s.handle("net.groups", s.victim)))
	s.admin.create(t, s.object(t, `{kind: IPPool, metadata: {name: alone}, spec: {cidr: 10.98.0.0/24, blockSize: 26}}`))
	meshtest.Eventually(t, func() error { // until admission has observed it
		if s.dryCreate(t, s.writable(t)["its affinity"]) == nil {
			return errors.New("the policy has not observed the pool")
		}
		return nil
	})
	refused(t, "a part of a block", s.dryCreate(t, s.writable(t)["its affinity"]))
	s.admin.create(t, s.object(t, `{kind: ClusterInformation, metadata: {name: default}, spec: {datastoreReady: false}}`))
	s.awaitLock(t, locked{what: "locked"}, s.writers(t), s.attempts(t))
}

// A token without a node is refused subresources, too.
func TestUnboundStatus(t *testing.T) {
	cfg := server(t, "enforce")
	admin, agent := newUser(t, cfg), newUser(t, labtest.AsOn(t, cfg, "tortie-node"))
	asked := admin.create(t, in(groups.V3,
		object(t, `{kind: CalicoNodeStatus, metadata: {name: unbound}, spec: {node: x, classes: [Agent], updatePeriodSeconds: 10}}`)))
	body := patch(map[string]any{"status": map[string]any{"lastUpdated": "2026-01-02T03:04:05Z"}})
	_, err := agent.of(asked).Patch(t.Context(), asked.GetName(), types.MergePatchType, body, metav1.PatchOptions{DryRun: dryRun}, "status")
	refused(t, "patch a status", err)
}
