package names

import (
	"encoding/json"
	"maps"

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
