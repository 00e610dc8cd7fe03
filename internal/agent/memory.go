package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

const (
	// worldFile is in the run directory, which a reboot clears: after it nothing in the kernel is an earlier agent's
	// either.
	worldFile = "tortie/world.json"
	// After a write follows a pause of worldShare times its duration, at least worldPause and at most mostWorldPause:
	// changes meanwhile are unknown to an agent that starts without the API server. worldTouch is the age at which an
	// unchanged file is renewed.
	worldPause, mostWorldPause = time.Second, 10 * time.Second
	worldShare                 = 100
	worldTouch                 = time.Hour
	// worldAge is the age up to which the file is used.
	worldAge = 24 * time.Hour
	// syncTime is how long a starting agent waits for the API server before it uses an earlier agent's state.
	syncTime = 3 * time.Second
)

// memory keeps the agent's state of the cluster for the next agent. If that starts while the API server is away, it can
// speak BGP, so that other nodes need not give its blocks up, and repair the kernel. Only root can read the file. It
// has no password.
type memory struct {
	path     string
	revision uint64
	services []netip.Prefix // announced prefixes
	past     []peering.Past // BGPPeers that were usable
	written  time.Time
	pause    time.Duration // after written, in which nothing is written
	putOff   bool          // a change is still to be written
}

// remembered is the file's content.
type remembered struct {
	Nodes       []api.Node                 `json:"nodes"`
	Self        *api.Node                  `json:"self"`
	Pools       []api.IPPool               `json:"pools"`
	Affinities  []api.BlockAffinity        `json:"affinities"`
	BGP         api.BGPConfigurationSpec   `json:"bgp"`
	OwnBGP      api.BGPConfigurationSpec   `json:"ownBGP"`
	MeshBFD     string                     `json:"meshBFD,omitempty"`
	Ports       map[string]uint16          `json:"ports"`
	Peers       []api.BGPPeer              `json:"peers"`
	Filters     []api.BGPFilter            `json:"filters"`
	Felix       api.FelixConfigurationSpec `json:"felix"`
	PasswordSet bool                       `json:"passwordSet"`
	Services    []netip.Prefix             `json:"services"` // announced prefixes
	Past        []peering.Past             `json:"past"`     // BGPPeers that were usable
}

// errNoPassword is why remembered peers with a password have no sessions.
var errNoPassword = errors.New("its Secret is not known while the API server is away")

// save writes the state of the cluster, the announcements for services, and the usable BGPPeers, which follow from the
// state; not if nothing has changed, or within the pause after the last write.
func (m *memory) save(now time.Time, w state.Cluster, services []netip.Prefix, past []peering.Past) error {
	same := w.Revision == m.revision && slices.Equal(services, m.services)
	if m.putOff = !same && now.Sub(m.written) < m.pause; m.putOff || same && now.Sub(m.written) < worldTouch {
		return nil
	}
	begun := time.Now()
	data, err := json.Marshal(remembered{
		w.Nodes, w.Self, w.Pools, w.Affinities, w.BGP, w.OwnBGP, w.MeshBFD, w.Ports, w.Peers, w.Filters, w.Felix,
		w.MeshPassword.Set, services, past,
	})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(m.path), 0o755)
	}
	written := false
	if err == nil {
		written, err = hostfile.Replace(m.path, data, 0o600)
	}
	if err == nil && !written {
		err = os.Chtimes(m.path, now, now)
	}
	if err != nil {
		return fmt.Errorf("what is known of the cluster cannot be kept for the next agent: %w", err)
	}
	m.revision, m.services, m.written = w.Revision, services, now
	m.pause = min(max(worldPause, worldShare*time.Since(begun)), mostWorldPause)
	return nil
}

// load reads the state that an earlier agent of this node wrote, and when.
func (m *memory) load(now time.Time, node string) (w state.Cluster, at time.Time, err error) {
	info, err := os.Stat(m.path)
	if err != nil {
		return w, at, err
	}
	data, err := os.ReadFile(m.path)
	if err != nil {
		return w, at, err
	}
	var r remembered
	switch err := json.Unmarshal(data, &r); {
	case err != nil:
		return w, at, fmt.Errorf("%s: %w", m.path, err)
	case r.Self == nil || r.Self.Name != node:
		return w, at, fmt.Errorf("%s is about another node", m.path)
	case now.Sub(info.ModTime()) > worldAge:
		return w, at, fmt.Errorf("%s is of %s, which is too long ago", m.path, info.ModTime().UTC().Format(time.RFC3339))
	}
	w = state.Cluster{
		Nodes: r.Nodes, Self: r.Self, Pools: r.Pools, Affinities: r.Affinities, BGP: r.BGP, OwnBGP: r.OwnBGP, MeshBFD: r.MeshBFD,
		Ports: r.Ports, Felix: r.Felix,
		Peers: r.Peers, Filters: r.Filters, Passwords: map[api.Place]state.Password{},
	}
	for _, p := range r.Peers {
		for _, place := range names.Secrets(&p) {
			w.Passwords[place] = state.Password{Set: true, Err: errNoPassword}
		}
	}
	m.services, m.past = r.Services, r.Past
	if r.PasswordSet {
		w.MeshPassword = state.Password{Set: true, Err: errNoPassword}
	}
	return w, info.ModTime(), nil
}

// awaitCluster returns when the watches have shown the whole cluster. If that takes long, passes use the earlier
// agent's state meanwhile; they remove nothing.
func (a *Agent) awaitCluster(ctx context.Context) error {
	synced := make(chan error, 1)
	go func() { synced <- a.Watch.WaitForSync(ctx, a.Log) }()
	w, at, err := a.memory.load(time.Now(), a.Config.Nodename)
	if err == nil {
		a.known.Recall(w.Nodes)
	}
	a.peering.State = peering.Recall(a.memory.past) // in any case: an object may have become invalid meanwhile
	select {
	case err := <-synced:
		return err
	case <-time.After(syncTime):
	}
	if err != nil {
		a.Log.Info("the API server does not answer, and no earlier agent has left its state", "err", err)
		return <-synced // it ends with ctx
	}
	a.offline = fmt.Errorf("the API server has not answered since this agent started: going by what an earlier one knew at %s",
		at.UTC().Format(time.RFC3339))
	a.node = w.Self
	a.services.Remembered = a.memory.services
	a.view.Update(time.Now(), desired.Self{Name: a.node.Name}, w)
	a.bgp.begun = time.Now()
	err = a.rounds(ctx, synced)
	a.offline = nil
	return err
}
