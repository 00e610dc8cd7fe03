package names

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// TierDefault is the tier of policies that name none.
const TierDefault = "default"

// Tier returns the tier that a policy's field stands for.
func Tier(field string) string {
	if field == "" {
		return TierDefault
	}
	return field
}

// Policy returns the name under which Calico's clients know a policy that is stored under another one: until release 3.31 Calico stores policies
// of tier default with the prefix "default.". Two stored policies, one of them with the prefix, may have the same name: while the newer release
// renames them.
func Policy(stored, tier string) string {
	if Tier(tier) == TierDefault {
		return strings.TrimPrefix(stored, TierDefault+".")
	}
	return stored
}

// Labels returns an object's labels as Calico sees them: those of its own API version, in an annotation, precede Kubernetes'. An annotation that
// cannot be read has none.
func Labels(m *api.Meta) map[string]string {
	var own struct{ Labels map[string]string }
	if text := m.Annotations[AnnotationMetadata]; text == "" || json.Unmarshal([]byte(text), &own) != nil || len(own.Labels) == 0 {
		return m.Labels
	}
	all := maps.Clone(m.Labels)
	if all == nil {
		return own.Labels
	}
	maps.Copy(all, own.Labels)
	return all
}
