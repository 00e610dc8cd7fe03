package rights

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// writable are objects of the second group that a node may create in a cluster that runs on that group.
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

// While a cluster with both groups runs on the first one, nodes write nothing in the second, and only the migration
// makes its ClusterInformation.
func TestGroupsInForce(t *testing.T) {
	s := newSceneIn(t, groups.V3)
	own := s.admin.create(t, s.handle("net.groups-own", s.thief))
	info := s.admin.create(t, object(t, `{kind: ClusterInformation, metadata: {name: default}, spec: {datastoreReady: true}}`))
	probe := s.writable(t)["its handle"]
	meshtest.Eventually(t, func() error { // until admission has observed it
		if s.dryCreate(t, probe) == nil {
			return errors.New("the policy has not observed the ClusterInformation")
		}
		return nil
	})
	for what, obj := range s.writable(t) {
		refused(t, "create "+what+" while the first group is in force", s.dryCreate(t, obj))
	}
	_, err := s.plugin.of(own).Update(t.Context(), own, metav1.UpdateOptions{})
	refused(t, "update its handle", err)
	refused(t, "delete its handle", s.plugin.of(own).Delete(t.Context(), own.GetName(), metav1.DeleteOptions{}))
	info.Object["spec"].(map[string]any)["datastoreReady"] = false
	_, err = s.admin.of(info).Update(t.Context(), info, metav1.UpdateOptions{})
	errtest.Must(t, err)
	meshtest.Eventually(t, func() error { return s.dryCreate(t, probe) })
	for what, obj := range s.writable(t) {
		check(t, "create "+what+" after the migration", s.dryCreate(t, obj), strings.HasPrefix(what, "ClusterInformation"))
	}
	refused(t, "create a handle in the first group after the migration", s.dryCreate(t, handle("net.groups", s.thief)))
}

// TestSecondGroupAlone takes one server that has no definitions of the first group through what depends on that.
func TestSecondGroupAlone(t *testing.T) {
	server := labtest.NewServerOf(t, groups.V3)
	t.Run("fence", func(t *testing.T) { testFenceOfSecondGroup(t, restConfig(t, server)) })
	t.Run("defaults of policies", func(t *testing.T) { testPolicyDefaults(t, server) })
}

// Without the definitions of the first group's parameters nodes write, and are fenced.
func testFenceOfSecondGroup(t *testing.T, cfg *rest.Config) {
	labtest.Fence(t, cfg)
	s := &scene{group: groups.V3, admin: newUser(t, cfg), cfg: cfg, thief: "thief", victim: "victim"}
	s.admin.declare(t, s.thief)
	s.agent = newUser(t, labtest.OnNode(t, cfg, "tortie-node", s.thief))
	s.plugin = newUser(t, labtest.OnNode(t, cfg, "tortie-cni", s.thief))
	s.awaitParameters(t)
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
