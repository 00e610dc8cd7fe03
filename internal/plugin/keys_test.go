package plugin

import (
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/cniconf"
)

// TestKeysAreWhatThePluginReads: the keys listed as acted on or refused are the ones that the plugin reads, of the
// configuration and of pods.
func TestKeysAreWhatThePluginReads(t *testing.T) {
	var said, read []string
	for _, k := range cniconf.Keys {
		if k.Fate == api.Acted || k.Fate == api.Refused {
			said = append(said, k.Key)
		}
	}
	for _, o := range Options() {
		if !slices.ContainsFunc(cniconf.Keys, func(k api.Input) bool { return k.Key == o.Key && k.Fate == api.Written }) {
			read = append(read, o.Key)
		}
	}
	slices.Sort(said)
	slices.Sort(read)
	if !slices.Equal(said, read) {
		t.Errorf("said to be read: %v\nread: %v", said, read)
	}
	for _, a := range Annotations() {
		for kind, has := range map[string]bool{"Pod": true, "Namespace": a.OfNamespace} {
			if acted := slices.Contains(api.CalicoAnnotations,
				api.Input{On: kind, Key: a.Key, Fate: api.Acted, Why: whyOf(kind, a.Key)}); acted != has {
				t.Errorf("%s on a %s: said to be acted on: %v, read: %v", a.Key, kind, acted, has)
			}
		}
	}
}

func whyOf(kind, key string) string {
	for _, i := range api.CalicoAnnotations {
		if i.On == kind && i.Key == key {
			return i.Why
		}
	}
	return ""
}
