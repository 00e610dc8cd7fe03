package podnet

import (
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// takeOver removes a link with the name of the pod's link, or returns why it must stay.
func (w *wiring) takeOver(old netlinkx.Link) error {
	why, err := w.stale(old)
	if err != nil {
		return err
	}
	w.Log.Info("removing a link that has the name of this pod's", "link", describe(old), "why", why)
	if err := w.host.DeleteLink(old.Index); err != nil && !netlinkx.IsNotExist(err) {
		return fmt.Errorf("remove %s, which has the name of the pod's link: %w: rename it (ip link set %s name OTHER)",
			describe(old), err, old.Name)
	}
	return nil
}

// stale returns why a link with the name of this pod's is no longer needed, or an error that names its user.
//
// A sandbox is dead when its namespace is gone, and also when no process is left in it: a namespace may stay mounted
// for as long as the node runs, and a pod of that name could never start here again. The runtime has a process in each
// ready sandbox, and starts a pod's second sandbox after it has ended the first.
//
// A name proves nothing: a pod with CAP_NET_ADMIN can make links in its node's namespace, of any kind and name. It
// cannot make routes there, so a link without a route is no pod's.
func (w *wiring) stale(old netlinkx.Link) (why string, err error) {
	if w.Alias != "" && old.Alias == w.Alias {
		return "it is of the same container", nil
	}
	if !isPair(old) {
		return "it is of a kind that no pod has", nil
	}
	alive, err := w.host.PeerAlive(old)
	if err != nil {
		return "", err
	}
	if !alive {
		return "its other end's namespace is gone", nil
	}
	if old.Peer == netlinkx.PeerHere {
		return "its other end is in no pod", nil
	}
	behind, err := addrsByLink(w.host, old.Index)
	if err != nil {
		return "", err
	}
	pid, err := w.host.PeerProcess(old)
	if err != nil {
		return "", err
	}
	switch {
	case w.sameContainer(old) && len(behind) > 0:
		return "", fmt.Errorf("%s is another interface of the same container: a pod has one link of this network", describe(old))
	case pid == 0:
		return "no process is left at its other end", nil
	case len(behind) == 0:
		w.Log.Warn("a link that is no pod's has the name of this pod's: a pod with CAP_NET_ADMIN may have made it",
			"link", describe(old), "process", pid)
		return "no route leads to it", nil
	}
	return "", fmt.Errorf(
		"%s is the link of an earlier sandbox of this pod, which is alive (process %d): the pod gets its interface once that sandbox has ended",
		describe(old), pid)
}

// sameContainer reports whether a link belongs to the same container, perhaps as another interface.
func (w *wiring) sameContainer(old netlinkx.Link) bool {
	mine, _, ok := ParseAlias(w.Alias)
	theirs, _, okToo := ParseAlias(old.Alias)
	return ok && okToo && mine == theirs
}

// isPair reports whether a link is of a kind that pods have.
func isPair(l netlinkx.Link) bool { return l.Kind == "veth" || l.Kind == "netkit" }

// describe names a link and, by its alias, its container.
func describe(l netlinkx.Link) string {
	text := fmt.Sprintf("%s (%s, index %d", l.Name, l.Kind, l.Index)
	if handle, ifName, ok := ParseAlias(l.Alias); ok {
		network, container := handle, ""
		if at := strings.LastIndexByte(handle, '.'); at >= 0 {
			network, container = handle[:at], handle[at+1:]
		}
		text += fmt.Sprintf(", %s of container %s in network %s", ifName, container, network)
	} else if l.Alias != "" {
		text += fmt.Sprintf(", alias %q", l.Alias)
	}
	return text + ")"
}
