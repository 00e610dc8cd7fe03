package names

import (
	"cmp"
	"encoding/json"
	"maps"

	"github.com/tortie-net/tortie/internal/api"
)

// TierDefault is the tier of policies that name none.
const TierDefault = "default"

// Tier returns the tier that a policy's field names.
func Tier(field string) string {
	if field == "" {
		return TierDefault
	}
	return field
}

// Labels returns an object's labels as Calico sees them: labels of its own API version, in an annotation, override
// Kubernetes'. An unreadable annotation has none.
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

// Annotations returns an object's annotations of Calico's own API version; none if they cannot be read.
func Annotations(m *api.Meta) map[string]string {
	var own struct{ Annotations map[string]string }
	_ = json.Unmarshal([]byte(m.Annotations[AnnotationMetadata]), &own) // invalid JSON has none
	return own.Annotations
}

// Annotation returns an annotation as its author sees it: calicoctl writes annotations of Calico's own API version.
func Annotation(m *api.Meta, key string) string {
	return cmp.Or(Annotations(m)[key], m.Annotations[key])
}

// Secrets returns the places of the password and the TCP-AO keys of a BGPPeer.
func Secrets(p *api.BGPPeer) []api.Place {
	var places []api.Place
	if place, ok := p.Spec.Password.Place(); ok {
		places = append(places, place)
	}
	if place, ok := api.TCPAOPlace(Annotation(&p.Meta, api.AnnotationTCPAO)); ok {
		places = append(places, place)
	}
	return places
}

// Name returns the name that Calico's clients have written into an object; none if it cannot be read.
func Name(m *api.Meta) string {
	var own struct{ Name string }
	_ = json.Unmarshal([]byte(m.Annotations[AnnotationMetadata]), &own) // invalid JSON has none
	return own.Name
}

// SetName writes the object's name as Calico's clients do; its other metadata of Calico's stays.
func SetName(m *api.Meta) { setOwn(m, func(all map[string]any) { all["name"] = m.Name }) }

// SetMetadata writes labels and annotations of Calico's own API version into an object; its other metadata of Calico's
// stays.
func SetMetadata(m *api.Meta, labels, annotations map[string]string) {
	setOwn(m, func(all map[string]any) {
		all["labels"] = labels
		if delete(all, "annotations"); len(annotations) > 0 {
			all["annotations"] = annotations
		}
	})
}

// setOwn changes an object's metadata of Calico's own API version. encoding/json sorts the keys, as Calico's encoder
// does.
func setOwn(m *api.Meta, set func(all map[string]any)) {
	all := map[string]any{}
	if json.Unmarshal([]byte(m.Annotations[AnnotationMetadata]), &all) != nil || all == nil {
		all = map[string]any{}
	}
	set(all)
	text, err := json.Marshal(all)
	if err != nil {
		panic("what was decoded, and maps of strings, do not encode: " + err.Error())
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[AnnotationMetadata] = string(text)
}
