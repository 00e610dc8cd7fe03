package rights

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// fromHostLocal is the chart's value with which nodes lock the datastore.
var fromHostLocal = []string{"--set", "migrateFromHostLocal=true"}

// locked are the writers of a locked datastore, by its ClusterInformation.
type locked struct {
	what, annotations, spec string
	allowed                 string // the accounts that may write; the administrator always may
}

// lockRows are the locks of a group, for node thief.
func lockRows(thief, victim string) []locked {
	all := "agent plugin controllers nameless unbound"
	return []locked{
		{"unlocked", "", "datastoreReady: true", all},
		{"locked", "", "datastoreReady: false", ""},
		{"unlocked again", "", "datastoreReady: true", all},
		{"locked by an upgrade of the node", "tortie.net/upgrading-nodes: '" + victim + "," + thief + "'", "datastoreReady: false", "agent"},
		{"locked by an upgrade of another", "tortie.net/upgrading-nodes: " + victim, "datastoreReady: false", ""},
		{"before agents have said anything", "", "clusterType: k8s", all},
		{"locked by kube-controllers migrate", "tortie.net/migrating: '{}'", "datastoreReady: false", ""},
	}
}

// A locked group's addresses are written by nobody but administrators, and who has a part in the lock.
func TestLock(t *testing.T) { inEachGroup(t, testLock) }

func testLock(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group, fromHostLocal...)
	writers := s.writers(t)
	attempts := s.attempts(t)
	s.admin.create(t, s.object(t, `{kind: ClusterInformation, metadata: {name: default}, spec: {}}`))
	for _, row := range lockRows(s.thief, s.victim) {
		s.inform(t, row)
		s.awaitLock(t, row, writers, attempts)
		for who, u := range writers {
			for what, try := range attempts {
				denied := !strings.Contains(row.allowed, who)
				check(t, fmt.Sprintf("%s: %s by %s", row.what, what, who), try(u), denied)
			}
		}
		for what, try := range attempts {
			passed(t, row.what+": "+what+" by the administrator", try(s.admin))
		}
	}
}

// Without the value migrateFromHostLocal no node has a part in a lock.
func TestLockOfAnUpgradeIsAValue(t *testing.T) {
	s := newScene(t)
	writers, attempts := s.writers(t), s.attempts(t)
	s.admin.create(t, s.object(t, `{kind: ClusterInformation, metadata: {name: default}, spec: {}}`))
	row := locked{"an upgrade", "tortie.net/upgrading-nodes: " + s.thief, "datastoreReady: false", ""}
	s.inform(t, row)
	s.awaitLock(t, row, writers, attempts)
}

// writers are the accounts of the chart that write addresses. The controllers' pod runs on the thief's node.
func (s *scene) writers(t *testing.T) map[string]*user {
	t.Helper()
	return map[string]*user{
		"agent": s.agent, "plugin": s.plugin,
		"unbound":     newUser(t, labtest.AsOn(t, s.cfg, "tortie-cni")),  // plugins' tokens of earlier releases name no node
		"nameless":    newUser(t, labtest.AsOn(t, s.cfg, "tortie-node")), // nor do agents' where the kubelet is older
		"controllers": newUser(t, labtest.OnNode(t, s.cfg, "tortie-kube-controllers", s.thief)),
	}
}

// attempts are dry runs of all writes of addresses. The fence allows each to the thief's node.
func (s *scene) attempts(t *testing.T) map[string]func(*user) error {
	t.Helper()
	objects := func(n int) []*unstructured.Unstructured {
		cidr := fmt.Sprintf("10.98.%d.0/26", n)
		return []*unstructured.Unstructured{
			s.affinity(names.Affinity(s.thief, netip.MustParsePrefix(cidr)), s.thief, cidr),
			emptied(s.block(t, n, "host:"+s.thief)),
			s.handle(fmt.Sprintf("net.lock-%d-%s", n, s.thief), s.thief),
		}
	}
	all := map[string]func(*user) error{}
	for _, obj := range objects(220) {
		all["create "+obj.GetKind()] = func(u *user) error {
			_, err := u.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: dryRun})
			return err
		}
	}
	for _, obj := range objects(221) {
		on := &sample{stored: s.admin.create(t, obj)}
		all["update "+obj.GetKind()] = func(u *user) error { _, err := u.send(t.Context(), "update", on, change{}); return err }
		all["delete "+obj.GetKind()] = func(u *user) error {
			return u.of(on.stored).Delete(t.Context(), on.stored.GetName(), metav1.DeleteOptions{DryRun: dryRun})
		}
	}
	return all
}

// inform replaces the content of the ClusterInformation.
func (s *scene) inform(t *testing.T, row locked) {
	t.Helper()
	info := s.object(t, `{kind: ClusterInformation, metadata: {name: default, annotations: {%s}}, spec: {%s}}`, row.annotations, row.spec)
	was, err := s.admin.of(info).Get(t.Context(), "default", metav1.GetOptions{})
	errtest.Must(t, err)
	info.SetResourceVersion(was.GetResourceVersion())
	_, err = s.admin.of(info).Update(t.Context(), info, metav1.UpdateOptions{})
	errtest.Must(t, err)
}

// awaitLock waits until admission has observed the ClusterInformation: until one write by each account has the answer
// that it should have.
func (s *scene) awaitLock(t *testing.T, row locked, writers map[string]*user, attempts map[string]func(*user) error) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		var wrong error
		for who, u := range writers {
			err := attempts["create IPAMHandle"](u)
			if (err == nil) != strings.Contains(row.allowed, who) {
				wrong = errors.Join(wrong, fmt.Errorf("%s: by %s: %w", row.what, who, errors.Join(errAnswer, err)))
			}
		}
		return wrong
	})
}

// errAnswer is a write of a locked datastore that is answered as it should not be.
var errAnswer = errors.New("admission has not observed the ClusterInformation")
