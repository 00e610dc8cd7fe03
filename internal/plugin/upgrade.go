package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// upgradedNetwork is the one network whose addresses are migrated, and its directory of host-local's files: Calico's
// names.
const (
	upgradedNetwork    = "k8s-pod-network"
	upgradedNetworkDir = "/var/lib/cni/networks/" + upgradedNetwork
)

// Times of a migration.
const (
	upgradeTime  = 10 * time.Minute // of all attempts: then the container fails, which people see
	attemptTime  = 2 * time.Minute
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// drainTime is how long plugins that were executed before the programs were removed may still run.
	drainTime = 5 * time.Second
	// inFlight is how old a file without a pod must be to be taken for a leftover: the kubelet gives up an ADD after two
	// minutes, and the pod may not show its address before the ADD is over.
	inFlight = 2 * time.Minute
)

// errInFlight: a container may be about to be connected.
var errInFlight = errors.New("an ADD may be under way")

// migration enters the addresses that host-local has assigned on this node into the datastore, so that their pods keep
// them.
//
// It can be killed at any point and started again. An address is entered before host-local's file of it is removed, and
// the directory is removed last. Meanwhile the datastore is marked not ready, so that no node assigns.
type migration struct {
	log    *slog.Logger
	node   string
	dir    string // host-local's
	binDir string
	drain  time.Duration
	store  *kubernetes.Store
	client *ipam.Client
	now    func() time.Time
}

// Upgrade moves this node from host-local to calico-ipam: calico-ipam -upgrade. Nothing to do is success.
func Upgrade(ctx context.Context, env config.Env, out io.Writer) error {
	cfg, err := config.LoadUpgrade(env)
	if err != nil {
		return err
	}
	store, err := upgradeStore(&cfg)
	if err != nil {
		return err
	}
	m := &migration{
		log:    slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: cfg.LogLevel})).With("node", cfg.NodeName),
		node:   cfg.NodeName,
		dir:    upgradedNetworkDir,
		binDir: cfg.BinDir,
		drain:  drainTime,
		store:  store,
		client: ipam.NewClient(store, time.Now),
		now:    time.Now,
	}
	return m.run(ctx)
}

func upgradeStore(u *config.Upgrade) (*kubernetes.Store, error) {
	cfg, err := kubernetes.LoadKubeconfigOverridden(u.Kubeconfig, kubernetes.Override{
		Context: u.K8sContext, Server: u.K8sEndpoint, CAFile: u.K8sCAFile, CertFile: u.K8sCertFile,
		KeyFile: u.K8sKeyFile, Insecure: u.K8sInsecure,
	})
	if err == nil && u.APIServer != "" {
		cfg, err = kubernetes.LoadKubeconfigOverridden("", kubernetes.Override{Server: u.APIServer, CAFile: u.CAFile})
		cfg.TokenFile = u.TokenFile
	}
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = "tortie-calico-ipam-upgrade"
	wanted, err := groups.Parse(u.APIGroup)
	if err != nil {
		return nil, fmt.Errorf("CALICO_API_GROUP: %w", err)
	}
	var store *kubernetes.Store
	cfg.Group = groups.Found(wanted, func(ctx context.Context, wanted groups.Group) (groups.Group, error) {
		return store.FindGroup(ctx, wanted, facts.ReadGroup(facts.GroupFile))
	})
	store, err = kubernetes.New(cfg)
	return store, err
}

// run tries until it succeeds or upgradeTime is over.
func (m *migration) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upgradeTime)
	defer cancel()
	for backoff := (wait.Backoff{First: firstPause, Most: longestPause}); ; {
		err := m.attempt(ctx)
		if err == nil {
			return nil
		}
		pause := backoff.Next()
		m.log.Warn("cannot complete the migration from host-local, retrying", "err", err, "in", pause)
		if !wait.Sleep(ctx, pause) {
			return fmt.Errorf("migrate node %s from host-local: %w (%w)", m.node, err, context.Cause(ctx))
		}
	}
}

func (m *migration) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	leases, err := readLeases(m.dir)
	if errors.Is(err, fs.ErrNotExist) {
		m.log.Info("nothing to migrate", "dir", m.dir)
		return nil
	}
	if err != nil {
		return err
	}
	enter := m.keepTunnelAddress
	if len(leases) > 0 {
		enter = m.migrate
	}
	if err := enter(ctx); err != nil {
		return err
	}
	// An attempt that was killed may have left the datastore locked. Without the directory no later run would look.
	if err := m.unlock(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(m.dir); err != nil {
		return err
	}
	m.log.Info("node migrated", "dir", m.dir)
	return nil
}

// migrate enters every address while no node assigns any. If it fails, the cluster is unlocked; this node still lacks
// its plugins.
func (m *migration) migrate(ctx context.Context) (err error) {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(err, m.unlock(ctx))
	}()
	if err := m.retire(ctx); err != nil {
		return err
	}
	// The API server refuses it to a node without a part of the lock while another node has one.
	if err := m.keepTunnelAddress(ctx); err != nil {
		return err
	}
	return m.enterAll(ctx)
}

// enterAll enters the addresses in the directory, holding host-local's lock.
func (m *migration) enterAll(ctx context.Context) error {
	unlock, err := lockStore(ctx, m.dir)
	if err != nil {
		return err
	}
	defer unlock()
	leases, err := readLeases(m.dir)
	if err != nil {
		return err
	}
	var pods api.List[api.Pod, *api.Pod]
	if err := m.store.List(ctx, &pods, datastore.ListOptions{Host: m.node}); err != nil {
		return fmt.Errorf("list the pods of node %s: %w", m.node, err)
	}
	var problems []error
	for _, l := range leases {
		problems = append(problems, m.enter(ctx, l, pods.Items))
	}
	return errors.Join(problems...)
}

// retire removes the programs that assign with host-local, and waits for those that run.
func (m *migration) retire(ctx context.Context) error {
	removed := false
	for _, name := range []string{calico, hostLocal} {
		err := os.Remove(filepath.Join(m.binDir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		removed = removed || err == nil
	}
	if !removed {
		return nil
	}
	m.log.Info("plugins removed: the install container puts the new ones there", "dir", m.binDir)
	if !wait.Sleep(ctx, m.drain) {
		return context.Cause(ctx)
	}
	return nil
}

// lockStore takes host-local's own lock, which it holds for milliseconds.
func lockStore(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := hostfile.Flock(ctx, f, 10*time.Millisecond); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock host-local's directory: %w: is there a host-local that hangs?", err)
	}
	return func() { f.Close() }, nil
}

// enter assigns a lease's address to its pod, or drops a lease without a pod.
func (m *migration) enter(ctx context.Context, l lease, pods []api.Pod) error {
	pod := l.owner(pods)
	if pod == nil {
		if age := m.now().Sub(l.written); age < inFlight {
			return fmt.Errorf("%s of container %s has no pod and is %v old: %w", l.path, l.container, age.Round(time.Second), errInFlight)
		}
		m.log.Info("dropped: no pod has it", "address", l.address, "container", l.container)
		return os.Remove(l.path)
	}
	_, err := m.client.Assign(ctx, ipam.Request{
		Owner:     l.ipamOwner(m.node, pod, m.now()),
		Host:      m.node,
		V4:        l.address.Is4(),
		V6:        l.address.Is6(),
		Addresses: []netip.Addr{l.address},
		Use:       api.UseWorkload,
	})
	if errors.Is(err, ipam.ErrNoPool) {
		return fmt.Errorf("%s of pod %s/%s: %w: create an IPPool of the range from which host-local assigned", l.path,
			pod.Namespace, pod.Name, err)
	}
	if err != nil {
		return fmt.Errorf("%s of pod %s/%s: %w", l.path, pod.Namespace, pod.Name, err)
	}
	m.log.Info("migrated", "address", l.address, "pod", pod.Namespace+"/"+pod.Name)
	return os.Remove(l.path)
}
