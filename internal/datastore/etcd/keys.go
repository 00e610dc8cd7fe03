package etcd

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// Calico's keys. Nothing is escaped: names have no slash.
const (
	prefixResources = "/calico/resources/v3/projectcalico.org/"
	prefixBlocks    = "/calico/ipam/v2/assignment/"
	prefixHosts     = "/calico/ipam/v2/host/"
	prefixHandles   = "/calico/ipam/v2/handle/"
	keyConfig       = "/calico/ipam/v2/config"
)

// keyOf returns the key of the object that obj names.
func keyOf(obj api.Resource) (string, error) {
	m := obj.GetMeta()
	switch o := obj.(type) {
	case *api.IPAMBlock:
		cidr, ok := names.ParseBlock(m.Name)
		if !ok {
			return "", fmt.Errorf("IPAMBlock %q: its name is not that of a CIDR", m.Name)
		}
		return prefixBlocks + blockPath(cidr), nil
	case *api.BlockAffinity:
		cidr, err := netip.ParsePrefix(o.Spec.CIDR)
		if err != nil {
			return "", fmt.Errorf("BlockAffinity %q: spec.cidr %q, which names it, is no CIDR", m.Name, o.Spec.CIDR)
		}
		host, err := segment("BlockAffinity", m.Name, "spec.node", o.Spec.Node)
		return hostsPrefix(o.Spec.Type) + host + "/" + blockPath(cidr), err
	case *api.IPAMHandle:
		id := o.Spec.HandleID
		if id == "" {
			id = m.Name
		}
		id, err := segment("IPAMHandle", m.Name, "spec.handleID", id)
		return prefixHandles + id, err
	case *api.IPAMConfig:
		if m.Name != api.DefaultName {
			return "", fmt.Errorf("IPAMConfig %q: there is none but %q", m.Name, api.DefaultName)
		}
		return keyConfig, nil
	}
	return resourceKey(obj)
}

func resourceKey(obj api.Resource) (string, error) {
	t, m := obj.ResourceType(), obj.GetMeta()
	prefix, err := resourcePrefix(t)
	if err != nil {
		return "", err
	}
	name, err := segment(t.Kind, m.Name, "metadata.name", m.Name)
	if err != nil || !t.Namespaced {
		return prefix + name, err
	}
	namespace, err := segment(t.Kind, m.Name, "metadata.namespace", m.Namespace)
	return prefix + namespace + "/" + name, err
}

// resourcePrefix returns what the keys of all objects of a kind start with.
func resourcePrefix(t api.Type) (string, error) {
	if t.Group == "" && t.Kind != "Node" {
		return "", fmt.Errorf("%s: this kind is Kubernetes' own, etcd as a datastore of Calico does not have it", t.Kind)
	}
	return prefixResources + t.Plural + "/", nil
}

// hostsPrefix returns the prefix of affinities' keys, which differs for affinities to others than hosts, such as load
// balancers' blocks.
func hostsPrefix(affinityType string) string {
	if affinityType == "" || affinityType == api.AffinityHost {
		return prefixHosts
	}
	return strings.Replace(prefixHosts, "/host/", "/"+affinityType+"/", 1)
}

// segment refuses values that would lead to the key of another object.
func segment(kind, name, field, value string) (string, error) {
	if value == "" || strings.Contains(value, "/") {
		return "", fmt.Errorf("%s %q: %s %q cannot be part of a key: it is empty or has a slash", kind, name, field, value)
	}
	return value, nil
}

func blockPath(cidr netip.Prefix) string {
	cidr = cidr.Masked()
	return fmt.Sprintf("ipv%s/block/%s-%d", names.IPVersion(cidr.Addr()), cidr.Addr(), cidr.Bits())
}

func parseBlockPath(path string) (netip.Prefix, bool) {
	_, text, ok := strings.Cut(path, "/block/")
	i := strings.LastIndexByte(text, '-')
	if !ok || i < 0 {
		return netip.Prefix{}, false
	}
	cidr, err := netip.ParsePrefix(text[:i] + "/" + text[i+1:])
	return cidr, err == nil && blockPath(cidr) == path
}

// listPrefix returns what the keys of a list's objects start with; other keys may start so too.
func listPrefix(t api.Type, host string) (string, error) {
	switch t {
	case (*api.IPAMBlock)(nil).ResourceType():
		return prefixBlocks, nil
	case (*api.BlockAffinity)(nil).ResourceType():
		if host == "" {
			return prefixHosts, nil
		}
		affinityType, name := names.SplitOwner(host)
		name, err := segment(t.Kind, "", "host", name)
		return hostsPrefix(affinityType) + name + "/", err
	case (*api.IPAMHandle)(nil).ResourceType():
		return prefixHandles, nil
	case (*api.IPAMConfig)(nil).ResourceType():
		return keyConfig, nil
	}
	return resourcePrefix(t)
}

// prefixEnd returns the end of the range of keys that start with a prefix.
func prefixEnd(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string([]byte{prefix[last] + 1})
}

// identify sets in obj what its key determines. It returns false if the key is not of obj's kind.
func identify(obj api.Resource, key string) bool {
	m := obj.GetMeta()
	switch o := obj.(type) {
	case *api.IPAMBlock:
		cidr, ok := parseBlockPath(strings.TrimPrefix(key, prefixBlocks))
		m.Name = names.Block(cidr)
		return ok
	case *api.BlockAffinity:
		return identifyAffinity(o, key)
	case *api.IPAMHandle:
		id := strings.TrimPrefix(key, prefixHandles)
		m.Name, o.Spec.HandleID = names.Handle(id), id
		return !strings.Contains(id, "/")
	case *api.IPAMConfig:
		m.Name = api.DefaultName
		return key == keyConfig
	}
	t := obj.ResourceType()
	path := strings.TrimPrefix(key, prefixResources+t.Plural+"/")
	namespace, name, namespaced := strings.Cut(path, "/")
	if !namespaced {
		namespace, name = "", path
	}
	m.Name, m.Namespace = name, namespace
	return namespaced == t.Namespaced && !strings.Contains(name, "/")
}

func identifyAffinity(a *api.BlockAffinity, key string) bool {
	affinityType, rest, _ := strings.Cut(strings.TrimPrefix(key, "/calico/ipam/v2/"), "/")
	host, path, _ := strings.Cut(rest, "/")
	cidr, ok := parseBlockPath(path)
	if !ok {
		return false // such as the mark of a host
	}
	a.Name, a.Labels = names.Affinity(host, cidr), names.AffinityLabels(host, affinityType, cidr)
	a.Spec.Node, a.Spec.Type, a.Spec.CIDR = host, affinityType, cidr.String()
	return true
}
