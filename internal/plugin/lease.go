package plugin

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
)

// lease is a file of host-local: its name is an address, its first line a container.
type lease struct {
	path      string
	address   netip.Addr
	container string
	written   time.Time
}

// readLeases reads a directory of host-local. Its other files, lock and last_reserved_ip.*, have no addresses as their
// names.
func readLeases(dir string) ([]lease, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var leases []lease
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil || !e.Type().IsRegular() {
			continue
		}
		l := lease{path: filepath.Join(dir, e.Name()), address: addr.Unmap()}
		if err := l.read(); err != nil {
			return nil, err
		}
		leases = append(leases, l)
	}
	return leases, nil
}

func (l *lease) read() error {
	data, err := os.ReadFile(l.path)
	if err != nil {
		return err
	}
	info, err := os.Stat(l.path)
	if err != nil {
		return err
	}
	first, _, _ := bytes.Cut(data, []byte("\n"))
	// The line ends in CR LF. A Calico that kept the CR made handles that no DEL finds.
	l.container, l.written = strings.TrimSpace(string(first)), info.ModTime()
	if len(l.container) > 256 || strings.ContainsFunc(l.container, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' }) {
		return fmt.Errorf("%s: its first line %.40q is no container ID: remove the file if no pod has that address", l.path, l.container)
	}
	return nil
}

// owner returns the pod that has the address; nil if none does. The pod's status, set by the kubelet, ranks before its
// annotation with the container ID, and that before its address annotations, which anyone who may write pods can set.
// Of a pod that has ended, or is on the host's network, only the container ID counts: its address may be another pod's.
func (l *lease) owner(pods []api.Pod) (best *api.Pod) {
	most := 0
	for i := range pods {
		p, rank := &pods[i], 0
		if id := p.Annotations[api.AnnotationContainerID]; id != "" && id == l.container {
			rank += 2
		}
		if !p.Spec.HostNetwork && p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed" {
			if l.isOf(p.Status.PodIP) || slices.ContainsFunc(p.Status.PodIPs, func(ip api.PodIP) bool { return l.isOf(ip.IP) }) {
				rank += 4
			}
			if slices.ContainsFunc(append(strings.Split(p.Annotations[api.AnnotationPodIPs], ","), p.Annotations[api.AnnotationPodIP]), l.isOf) {
				rank++
			}
		}
		if rank > most {
			best, most = p, rank
		}
	}
	return best
}

// isOf reports whether a text is the lease's address, perhaps with a prefix length.
func (l *lease) isOf(text string) bool {
	bare, _, _ := strings.Cut(strings.TrimSpace(text), "/")
	a, err := netip.ParseAddr(bare)
	return err == nil && a.Unmap() == l.address
}

// ipamOwner returns the owner that calico-ipam would have assigned the address to.
func (l *lease) ipamOwner(node string, pod *api.Pod, now time.Time) ipam.Owner {
	return ipam.Owner{
		Handle: names.PodHandle(upgradedNetwork, l.container),
		Attrs: map[string]string{
			"node":      node,
			"pod":       pod.Name,
			"namespace": pod.Namespace,
			"timestamp": now.UTC().Format(timestampFormat),
		},
	}
}
