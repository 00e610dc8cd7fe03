package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tortie-net/tortie/hack/modules"
)

// The parts of an in-toto statement (v1) with SLSA's provenance (v1) that a build without a build service can say.
// https://slsa.dev/spec/v1.0/provenance
type (
	statement struct {
		Type          string     `json:"_type"`
		Subject       []resource `json:"subject"`
		PredicateType string     `json:"predicateType"`
		Predicate     predicate  `json:"predicate"`
	}
	resource struct {
		Name        string            `json:"name,omitempty"`
		URI         string            `json:"uri,omitempty"`
		Digest      map[string]string `json:"digest,omitempty"`
		Annotations map[string]any    `json:"annotations,omitempty"`
	}
	predicate struct {
		Definition buildDefinition `json:"buildDefinition"`
		Run        runDetails      `json:"runDetails"`
	}
	buildDefinition struct {
		BuildType string            `json:"buildType"`
		External  map[string]string `json:"externalParameters"`
		Internal  map[string]any    `json:"internalParameters"`
		Resolved  []resource        `json:"resolvedDependencies"`
	}
	runDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	}
)

const (
	statementType  = "https://in-toto.io/Statement/v1"
	provenanceType = "https://slsa.dev/provenance/v1"
	// Both link to their definitions. The builder is the machine that ran make: it is not attested, and nothing is signed.
	buildType = source + "/blob/main/docs/image.md#provenance"
	builderID = source + "/blob/main/docs/image.md#whoever-ran-make"
)

// makeProvenance returns the SLSA provenance of an image. It has no times: they would differ between equal builds.
func makeProvenance(digest v1.Hash, images []platformImage, o options) ([]byte, error) {
	s := statement{Type: statementType, Subject: []resource{subject(o.ref, digest)}, PredicateType: provenanceType}
	s.Predicate.Run.Builder.ID = builderID
	s.Predicate.Definition = buildDefinition{
		BuildType: buildType,
		External:  map[string]string{"source": "git+" + source, "version": o.version, "created": o.created.UTC().Format("2006-01-02T15:04:05Z")},
		Internal:  map[string]any{},
		Resolved:  []resource{commit(o)},
	}
	all := &inventory{modules: map[modules.Module]modules.Licences{}}
	for _, i := range images {
		one, err := i.image.Digest()
		if err != nil {
			return nil, err
		}
		if one != digest {
			s.Subject = append(s.Subject, subject(o.ref+" linux/"+i.arch, one))
		}
		s.Predicate.Definition.Internal["linux/"+i.arch] = i.made.settings()
		maps.Copy(all.modules, i.made.modules)
	}
	for _, m := range all.sorted() {
		if m.Sum == "" && m.Path != modules.Standard {
			continue // of this repository: recorded by the commit
		}
		r, err := dependency(m)
		if err != nil {
			return nil, err
		}
		s.Predicate.Definition.Resolved = append(s.Predicate.Definition.Resolved, r)
	}
	text, err := json.MarshalIndent(s, "", " ")
	return append(text, '\n'), err
}

func subject(name string, digest v1.Hash) resource {
	return resource{Name: name, Digest: map[string]string{digest.Algorithm: digest.Hex}}
}

// commit returns the commit of the sources; a dirty tree is marked.
func commit(o options) resource {
	r := resource{URI: "git+" + source}
	if o.revision != "" {
		r.Digest = map[string]string{"gitCommit": o.revision}
	}
	if strings.HasSuffix(o.version, "-dirty") {
		r.Annotations = map[string]any{"modified": true}
	}
	return r
}

// dependency returns a module with its sum of go.sum in the form of in-toto. The standard library has no sum.
func dependency(m modules.Module) (resource, error) {
	r := resource{URI: purl(m)}
	if m.Sum == "" {
		return r, nil
	}
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
	if err != nil {
		return r, fmt.Errorf("sum %q of module %s: %w", m.Sum, m.Path, err)
	}
	r.Digest = map[string]string{"dirHash": hex.EncodeToString(sum)}
	return r, nil
}

// settings returns the build settings of each program.
func (i *inventory) settings() map[string]map[string]string {
	all := map[string]map[string]string{}
	for name, p := range i.programs {
		all[name] = p.Settings
	}
	return all
}
