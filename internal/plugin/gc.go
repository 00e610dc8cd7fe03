package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/datastore/podnote"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/plugin/journal"
)

// attachmentsKey is the key under which a runtime lists the remaining attachments of a network.
const attachmentsKey = "cni.dev/valid-attachments"

// gc removes the links of containers that the runtime does not list and frees their addresses, of this network and this
// node only. It also removes the temporary files of killed plugins. It goes on after an error; a second GC does the
// rest.
func gc(ctx context.Context, c *call) error {
	s, err := c.openNode()
	if err != nil {
		return err
	}
	valid, err := s.attachments()
	if err != nil {
		return err
	}
	sweep := sweep{session: s, valid: valid, own: s.conf.IPAM.Type == calicoIPAM}
	errs := []error{sweep.links(), sweep.holders(ctx), sweep.remove(ctx)}
	if sweep.own {
		errs = append(errs, sweep.free(ctx))
	} else {
		errs = append(errs, (&delegated{s}).gc(ctx))
	}
	errs = append(errs, journal.DefaultDir.Each(ctx, func(e journal.Entry) error { return s.finish(ctx, e) }))
	// A plugin that writes there now loses its note for the next one, which then asks the API server.
	return errors.Join(append(errs, hostfile.Sweep(filepath.Dir(facts.DefaultFile)))...)
}

// ipamGC frees the addresses of containers that the runtime does not list, for a plugin that makes its own links.
func ipamGC(ctx context.Context, c *call) error {
	s, err := c.openNode()
	if err != nil {
		return err
	}
	valid, err := s.attachments()
	if err != nil {
		return err
	}
	sweep := sweep{session: s, valid: valid, own: true}
	return errors.Join(sweep.holders(ctx), sweep.free(ctx))
}

// attachments returns what the runtime lists. A missing list is an error: as an empty one it would free everything.
func (s *session) attachments() ([]types.GCAttachment, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(s.stdin, &keys); err != nil {
		return nil, failure(types.ErrDecodingFailure, fmt.Errorf("network configuration: %w", err))
	}
	if _, listed := keys[attachmentsKey]; !listed {
		return nil, failure(types.ErrInvalidNetworkConfig, fmt.Errorf(
			"network configuration: %s is missing: the runtime must list the containers that are left, if only an empty list", attachmentsKey))
	}
	return s.conf.ValidAttachments, nil
}

// sweep is one garbage collection.
type sweep struct {
	*session
	valid []types.GCAttachment
	own   bool // this process assigns the addresses

	all    []podnet.Link // of the node
	stale  []podnet.Link // of containers, or of their interfaces, that are not listed
	dead   []ipam.Holder // of the network that are not listed
	spared []string      // IDs of containers that are not listed and keep what they have
}

// containerOf returns the container ID in a handle of the network. A network's name may have dots and begin with
// another network's name; container IDs have no dots. So a handle with a dot in the ID belongs to another network.
func (w *sweep) containerOf(handle string) (id string, ok bool) {
	id, ok = strings.CutPrefix(handle, names.PodHandle(w.conf.Name, ""))
	return id, ok && id != "" && !strings.Contains(id, ".")
}

func (w *sweep) lists(id string) bool {
	return slices.ContainsFunc(w.valid, func(a types.GCAttachment) bool { return a.ContainerID == id })
}

// links finds the links whose alias names a container that is not listed.
func (w *sweep) links() (err error) {
	if w.all, err = podnet.Links(); err != nil {
		return fmt.Errorf("look for links: %w", err)
	}
	for _, l := range w.all {
		id, ok := w.containerOf(l.Handle)
		if ok && !slices.Contains(w.valid, types.GCAttachment{ContainerID: id, IfName: l.IfName}) {
			w.stale = append(w.stale, l)
		}
	}
	return nil
}

// holders finds the addresses of containers that are not listed, and their links without an alias.
func (w *sweep) holders(ctx context.Context) error {
	if !w.own {
		return nil
	}
	if err := w.ready(ctx); err != nil {
		return err
	}
	all, err := ipam.NewClient(w.store, time.Now).Holders(ctx, w.node)
	for _, h := range all {
		id, ok := w.containerOf(h.Handle)
		switch {
		case w.lists(id):
		case !ok || w.young(h):
			w.spared = append(w.spared, strings.TrimPrefix(h.Handle, names.PodHandle(w.conf.Name, "")))
		default:
			w.dead = append(w.dead, h)
			w.stale = append(w.stale, w.unnamed(h)...)
		}
	}
	return err
}

// young reports whether a holder was added after the runtime had made its list.
func (w *sweep) young(h ipam.Holder) bool {
	at, err := time.Parse(timestampFormat, h.Attrs["timestamp"])
	return err == nil && !at.Before(w.began)
}

// unnamed returns the holder's link without an alias, made by a Calico or an earlier version of this plugin. It has the
// name of the holder's pod, and routes to addresses of the holder only.
func (w *sweep) unnamed(h ipam.Holder) (links []podnet.Link) {
	name := podnet.HostVethName(w.conf.vethPrefix(), h.Attrs["namespace"], h.Attrs["pod"])
	for _, l := range w.all {
		foreign := len(l.Addresses) == 0
		for _, a := range l.Addresses {
			foreign = foreign || !slices.Contains(h.Addresses, a)
		}
		if l.Handle == "" && l.Name == name && !foreign {
			links = append(links, l)
		}
	}
	return links
}

// remove removes the stale links. A link whose namespace has a process stays, and its container keeps its addresses: it
// is in use although the runtime does not list it.
func (w *sweep) remove(ctx context.Context) error {
	var errs []error
	for _, l := range w.stale {
		pid, err := l.Process()
		if err == nil && pid == 0 {
			w.log.Info("removing the link of a container that the runtime does not list", "link", l.Name, "handle", l.Handle,
				"addresses", l.Addresses)
			err = l.Remove(ctx, w.log)
		}
		if err == nil && pid == 0 {
			continue
		}
		if pid != 0 && len(l.Addresses) == 0 { // any pod can make one: see podnet.Holds. A container that is being added is young.
			w.log.Warn("a link without a route has the alias of a container that the runtime does not list: it holds no address", "link", l.Name,
				"handle", l.Handle, "process", pid)
			continue
		}
		if pid != 0 {
			w.log.Warn("the runtime does not list a container that is alive: it keeps its link and addresses", "link", l.Name,
				"handle", l.Handle, "process", pid)
		}
		w.spare(l)
		errs = append(errs, err)
	}
	w.dead = slices.DeleteFunc(w.dead, w.inUse)
	return errors.Join(errs...)
}

// spare makes the container of a link keep its addresses.
func (w *sweep) spare(l podnet.Link) {
	w.dead = slices.DeleteFunc(w.dead, func(h ipam.Holder) bool {
		if h.Handle != l.Handle && !slices.ContainsFunc(l.Addresses, func(a netip.Addr) bool { return slices.Contains(h.Addresses, a) }) {
			return false
		}
		id, _ := w.containerOf(h.Handle)
		w.spared = append(w.spared, id)
		return true
	})
}

// inUse reports whether an address of a holder is routed to a link that stays, of any container, and spares the holder:
// a pod has the address.
func (w *sweep) inUse(h ipam.Holder) bool {
	for _, l := range w.all {
		stays := !slices.ContainsFunc(w.stale, func(s podnet.Link) bool { return s.Name == l.Name })
		if stays && slices.ContainsFunc(l.Addresses, func(a netip.Addr) bool { return slices.Contains(h.Addresses, a) }) {
			id, _ := w.containerOf(h.Handle)
			w.spared = append(w.spared, id)
			w.log.Warn("the address of a container that the runtime does not list leads to a link that is not the container's: it stays assigned",
				"handle", h.Handle, "addresses", h.Addresses, "link", l.Name)
			return true
		}
	}
	return false
}

// free frees the addresses of dead, after it has cleared them on their pods.
func (w *sweep) free(ctx context.Context) error {
	var errs []error
	for _, h := range w.dead {
		id, _ := w.containerOf(h.Handle)
		if err := w.clear(ctx, h, id); err != nil {
			w.spared = append(w.spared, id)
			errs = append(errs, fmt.Errorf("note that the addresses of container %s are released: %w", id, err))
		}
	}
	if len(w.dead) == len(errs) {
		return errors.Join(errs...)
	}
	live := slices.Clone(w.spared)
	for _, a := range w.valid {
		live = append(live, a.ContainerID)
	}
	freed, err := ipam.NewClient(w.store, time.Now).Collect(ctx, ipam.Collection{
		Host: w.node, Network: w.conf.Name, Live: live, Before: w.began, Known: w.known(),
	})
	errs = append(errs, err)
	for _, h := range freed {
		w.log.Info("freed the addresses of a container that the runtime does not list", "handle", h.Handle, "addresses", h.Addresses)
		w.freed = append(w.freed, h.Addresses...)
	}
	w.forget(nil)
	return errors.Join(errs...)
}

// clear removes the addresses from the holder's pod, if the pod has them from that container.
func (w *sweep) clear(ctx context.Context, h ipam.Holder, id string) error {
	entry := journal.Entry{
		Network: w.conf.Name, Namespace: h.Attrs["namespace"], Pod: h.Attrs["pod"], ContainerID: id, IfName: podnote.Primary,
	}
	if w.conf.DatastoreType == datastoreEtcd {
		return (&objectEndpoint{w.of(entry)}).clearAll(ctx)
	}
	if entry.Namespace == "" || entry.Pod == "" {
		return nil
	}
	return w.of(entry).endpoint().clear(ctx)
}

// gc passes the list to another IPAM plugin, which alone knows its assignments.
func (d *delegated) gc(ctx context.Context) error {
	return d.exec(ctx, "GC")
}
