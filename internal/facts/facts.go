// Package facts is the file by which the agent tells the plugins of its node what changes seldom, so that an ADD need not ask
// the API server for it.
//
// The file is a hint. Whatever a plugin writes because of it is guarded by the revision of the object that it writes, so that
// facts which are out of date cost a second try and never an address. A plugin that finds no file, or an old one, asks the
// API server.
package facts

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/hostfile"
)

// DefaultFile is where the agent writes and the plugins read. It lies in memory: after a reboot there are no facts.
const DefaultFile = "/var/run/calico/tortie/facts.json"

const (
	// Interval is how often the agent writes the file while nothing changes, as a sign that it still follows the cluster.
	Interval = 10 * time.Second
	// MaxAge is how old facts may be to save requests.
	MaxAge = 30 * time.Second
)

// format is the version of the file's content. Plugins and agent are rolled out one after the other: a file of another
// format is no file.
const format = 1

// ErrUnusable: there is no file that says anything about now.
var ErrUnusable = errors.New("no usable facts of the agent")

// Facts are what the agent has seen of the cluster.
type Facts struct {
	Format int `json:"format"`
	// Written is when the agent last knew that all of this holds.
	Written time.Time `json:"written"`
	// AgentReady says that the agent has programmed the node's kernel once since it started.
	AgentReady bool `json:"agentReady"`
	// DatastoreReady is that of ClusterInformation default: false while an operator has locked the datastore.
	DatastoreReady bool `json:"datastoreReady"`
	// Node is the node's name.
	Node         string               `json:"node"`
	NodeLabels   map[string]string    `json:"nodeLabels"`
	Config       api.IPAMConfigSpec   `json:"config"`
	Pools        []api.IPPool         `json:"pools"`
	Reservations []api.IPReservation  `json:"reservations"`
	Affinities   []Affinity           `json:"affinities"`
	Namespaces   map[string]Namespace `json:"namespaces"`
}

// Affinity is one of the node's claims.
type Affinity struct {
	api.BlockAffinity
	// Free is how many addresses of the block were free; nil if the agent does not know.
	Free *int `json:"free,omitempty"`
}

// Namespace is what matters of a namespace: the annotations of Calico, and the labels if a pool's namespaceSelector asks
// for any.
type Namespace struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Read returns the facts in a file. An absent, older or damaged file, one of another node or of another format is
// ErrUnusable: the caller asks the datastore instead.
func Read(path, node string, now time.Time) (*Facts, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	var f Facts
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnusable, path, err)
	}
	age := now.Sub(f.Written)
	switch {
	case f.Format != format:
		return nil, fmt.Errorf("%w: %s has format %d, not %d", ErrUnusable, path, f.Format, format)
	case f.Node != node:
		return nil, fmt.Errorf("%w: %s is of node %q, not of %q", ErrUnusable, path, f.Node, node)
	case age > MaxAge || age < -MaxAge:
		return nil, fmt.Errorf("%w: %s was written %s ago: the agent does not run, or has lost the API server", ErrUnusable, path, age.Round(time.Second))
	}
	return &f, nil
}

// Write replaces the file as a whole: a reader sees the old facts or the new ones.
func Write(path string, f Facts) error {
	f.Format = format
	data, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("facts: %w", err)
	}
	_, err = hostfile.Replace(path, data, 0o600)
	return err
}
