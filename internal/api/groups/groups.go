// Package groups knows the two API groups that a cluster may keep Calico's objects in.
package groups

import (
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// Group is one of the two groups, with its version.
type Group string

// The groups.
const (
	V1 Group = api.Group + "/v1"
	V3 Group = "projectcalico.org/v3"
)

// Type returns where a kind is in a cluster that keeps Calico's objects in the group. Kinds that are not Calico's are
// where they are.
func (g Group) Type(t api.Type) api.Type {
	if t.Group != api.Group || g != V3 {
		return t
	}
	t.Group, t.Version, _ = strings.Cut(string(V3), "/")
	if t.Kind == "IPAMConfig" {
		t.Kind, t.Plural = "IPAMConfiguration", "ipamconfigurations"
	}
	return t
}
