// Package facts is the file in which the agent keeps cluster state that changes seldom for the plugins of its node, so
// that ADD need not read it from the API server.
//
// The file is a hint. Every write that rests on it is guarded by the revision of the written object, or its answer is
// compared with the facts: outdated facts cost a second try and never an address. A plugin without a fresh file reads
// from the API server.
package facts

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/hostfile"
)

// DefaultFile is the file of the agent's facts. It lies in memory: after a reboot there are none.
const DefaultFile = "/var/run/calico/tortie/facts.json"

// GroupFile holds the API group in which the addresses in use on this node are assigned. The agent writes it, or a
// plugin if it is absent, as after a boot. Without facts, plugins look for Calico's objects there, and fail if they are
// elsewhere: only the agent follows a move.
const GroupFile = "/var/run/calico/tortie/api-group"

// TokenRefusedFile is touched by a plugin whose token the API server does not accept (HTTP 401). The installer watches
// it, requests a new token at once, and removes it when the API server has accepted that.
const TokenRefusedFile = "/var/run/calico/tortie/token-refused"

const (
	// Interval is how often the agent writes the file while nothing changes, as a sign that it still follows the cluster.
	Interval = 10 * time.Second
	// MaxAge is how old facts may be to save requests.
	MaxAge = 30 * time.Second
)

// maxNamespaces bounds, in bytes of JSON, each of the two lists of namespaces in the file: reading 64 KiB costs a
// plugin as much as a request for one namespace. Further namespaces are left out.
const maxNamespaces = 64 << 10

// maxPods bounds, in bytes, the UIDs of pods: some 1,700.
const maxPods = 64 << 10

// format is the version of the file's content. Plugins and agent are upgraded one after the other: a file of another
// format is ignored.
const format = 1

// ErrUnusable means that there are no facts that hold now.
var ErrUnusable = errors.New("no usable facts of the agent")

// Facts are the agent's view of the cluster.
type Facts struct {
	Format int `json:"format"`
	// Written is when the agent last confirmed the facts.
	Written time.Time `json:"written"`
	// AgentReady: the agent has programmed the node's kernel since it started.
	AgentReady bool `json:"agentReady"`
	// DatastoreReady is datastoreReady of ClusterInformation default: false while an operator has locked the datastore.
	DatastoreReady bool `json:"datastoreReady"`
	// Moving: the objects have moved to Group from the other group, and the agent has not yet made sure that the addresses
	// in use on this node are assigned there. Nothing may be assigned or released.
	Moving bool `json:"moving,omitempty"`
	// Group is the API group that the cluster keeps Calico's objects in; empty, from an older agent, is groups.V1.
	Group groups.Group `json:"group,omitempty"`
	// NoPolicies: the agent enforces no NetworkPolicies, by configuration or because another engine does on this node.
	NoPolicies bool `json:"noPolicies,omitempty"`
	// Node is the node's name.
	Node         string              `json:"node"`
	NodeLabels   map[string]string   `json:"nodeLabels"`
	Config       api.IPAMConfigSpec  `json:"config"`
	Pools        []api.IPPool        `json:"pools"`
	Reservations []api.IPReservation `json:"reservations"`
	Affinities   []Affinity          `json:"affinities"`
	// Namespaces are for Write. Readers call the method Namespace: most namespaces have no relevant metadata, and the file
	// has only their names.
	Namespaces map[string]Namespace `json:"namespaces"`
	// PlainPods are for Write: the UIDs of the node's plain pods (api.PlainPod), none unless the agent watches pods.
	// Readers call the method PlainPod.
	PlainPods []string `json:"-"`

	plain string // as read: the names of namespaces, each between blanks
	pods  string // as read: PlainPods, each between blanks
}

// Namespace returns what the agent has seen of a namespace. ok is false if it has not seen it, which proves nothing:
// the namespace may be a moment old.
func (f *Facts) Namespace(name string) (ns Namespace, ok bool) {
	if ns, ok = f.Namespaces[name]; ok {
		return ns, true
	}
	return ns, listed(f.plain, name)
}

// PlainPod reports whether the agent has seen the pod with that UID as plain. A controller may have annotated it since:
// the answer to a write of the pod shows that.
func (f *Facts) PlainPod(uid string) bool { return listed(f.pods, uid) }

// listed reports whether word stands between blanks in text.
func listed(text, word string) bool {
	return word != "" && !strings.Contains(word, " ") && strings.Contains(text, " "+word+" ")
}

// file is the JSON form of Facts.
type file struct {
	*Facts
	// Plain are the names of namespaces without relevant metadata. One string is read five times as fast as a map.
	Plain string `json:"plainNamespaces"`
	// Pods are PlainPods.
	Pods string `json:"plainPods,omitempty"`
}

// Affinity is one of the node's claims.
type Affinity struct {
	api.BlockAffinity
	// Free is how many addresses of the block were free; nil if the agent does not know.
	Free *int `json:"free,omitempty"`
}

// Namespace holds the relevant metadata of a namespace: Calico's annotations, and the labels that a pool's
// namespaceSelector names.
type Namespace struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Read returns the facts in a file. An absent, old or damaged file, or one of another node or format, is ErrUnusable:
// the caller asks the datastore.
func Read(path, node string, now time.Time) (*Facts, error) {
	data, err := hostfile.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	f := &Facts{}
	stored := file{Facts: f}
	if err := json.Unmarshal(data, &stored); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnusable, path, err)
	}
	f.plain, f.pods = stored.Plain, stored.Pods
	age := now.Sub(f.Written)
	switch {
	case f.Format != format:
		return nil, fmt.Errorf("%w: %s has format %d, not %d", ErrUnusable, path, f.Format, format)
	case f.Node != node:
		return nil, fmt.Errorf("%w: %s is of node %q, not of %q", ErrUnusable, path, f.Node, node)
	case age > MaxAge || age < -MaxAge:
		return nil, fmt.Errorf("%w: %s was written %s ago: the agent does not run, or has lost the API server", ErrUnusable,
			path, age.Round(time.Second))
	}
	return f, nil
}

// NoPolicies returns NoPolicies of a file of any age: the agent's decision holds while it does not run. It is false if
// the file cannot be read.
func NoPolicies(path, node string) bool {
	data, err := hostfile.ReadFile(path)
	var said struct {
		Format     int    `json:"format"`
		Node       string `json:"node"`
		NoPolicies bool   `json:"noPolicies"`
	}
	return err == nil && json.Unmarshal(data, &said) == nil && said.Format == format && said.Node == node && said.NoPolicies
}

// Write replaces the file as a whole: a reader sees the old facts or the new ones.
func Write(path string, f Facts) error {
	data, err := Encode(f)
	if err != nil {
		return err
	}
	if err := hostfile.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("facts: %w", err)
	}
	_, err = hostfile.Replace(path, data, 0o600)
	return err
}

// Encode returns the content of the file: the same for the same facts.
func Encode(f Facts) ([]byte, error) {
	f.Format = format
	stored := file{Facts: &f}
	stored.Plain, f.Namespaces = compact(f.Namespaces)
	stored.Pods = join(f.PlainPods)
	data, err := json.Marshal(stored)
	if err != nil {
		return nil, fmt.Errorf("facts: %w", err)
	}
	return data, nil
}

// compact returns the names of namespaces without relevant metadata, and the other namespaces. It leaves out what does
// not fit.
func compact(all map[string]Namespace) (plain string, others map[string]Namespace) {
	others = map[string]Namespace{}
	names := []byte{' '}
	size := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		ns := all[name]
		switch {
		case len(ns.Labels) > 0 || len(ns.Annotations) > 0:
			if size += jsonSize(name, ns); size <= maxNamespaces {
				others[name] = ns
			}
		case len(names)+len(name) < maxNamespaces:
			names = append(append(names, name...), ' ')
		}
	}
	return string(names), others
}

// join returns the sorted words, each between blanks. It leaves out what does not fit.
func join(words []string) string {
	var b strings.Builder
	for _, word := range slices.Sorted(slices.Values(words)) {
		if b.Len()+len(word) < maxPods {
			b.WriteString(" " + word)
		}
	}
	if b.Len() > 0 {
		b.WriteString(" ")
	}
	return b.String()
}

// jsonSize estimates the size of a namespace in the file.
func jsonSize(name string, ns Namespace) int {
	size := len(name) + len(`"":{"labels":{},"annotations":{}},`)
	for _, m := range []map[string]string{ns.Labels, ns.Annotations} {
		for k, v := range m {
			size += len(k) + len(v) + len(`"":"",`)
		}
	}
	return size
}
