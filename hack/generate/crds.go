package main

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"strings"

	"golang.org/x/tools/go/packages"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-tools/pkg/crd"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/install/definitions"
)

const crdDir = "charts/tortie/crds"

// The kinds with a definition. Node, Pod and Namespace are Kubernetes' own.
var kinds = []api.Resource{
	&api.IPPool{}, &api.IPReservation{}, &api.IPAMBlock{}, &api.BlockAffinity{}, &api.IPAMHandle{}, &api.IPAMConfig{},
	&api.ClusterInformation{}, &api.BGPConfiguration{}, &api.BGPPeer{}, &api.BGPFilter{}, &api.FelixConfiguration{},
	&api.CalicoNodeStatus{}, &api.KubeControllersConfiguration{},
	&api.CalicoNetworkPolicy{}, &api.CalicoGlobalNetworkPolicy{}, &api.CalicoTier{}, &api.CalicoNetworkSet{}, &api.CalicoGlobalNetworkSet{},
	&api.CalicoHostEndpoint{}, &api.CalicoStagedNetworkPolicy{}, &api.CalicoStagedGlobalNetworkPolicy{},
	&api.CalicoStagedKubernetesNetworkPolicy{},
}

// shortNames are those that Calico's API server has, by plural; gns, which it lacks, goes with gnp.
var shortNames = map[string][]string{
	"networkpolicies":       {"cnp", "caliconetworkpolicy", "caliconetworkpolicies"},
	"globalnetworkpolicies": {"gnp", "cgnp", "calicoglobalnetworkpolicies"},
	"networksets":           {"netsets"}, "globalnetworksets": {"gns"}, "hostendpoints": {"hep", "heps"},
	"blockaffinities":   {"affinity", "affinities"},
	"bgpconfigurations": {"bgpconfig", "bgpconfigs"}, "felixconfigurations": {"felixconfig", "felixconfigs"},
	"kubecontrollersconfigurations": {"kcconfig"}, "clusterinformations": {"clusterinfo"},
}

// wholeObjects are kinds without a status subresource: their clients write spec and status in one request, of which the
// API server would drop the status.
var wholeObjects = map[string]bool{"CalicoNodeStatus": true, "KubeControllersConfiguration": true}

// crds returns the CustomResourceDefinitions of Calico's resources. Their source is internal/api, whose comments are
// the descriptions and whose markers are the rules.
func crds(root string) (files, error) {
	g, err := load(root)
	if err != nil {
		return nil, err
	}
	out := files{}
	for _, kind := range kinds {
		t := kind.ResourceType()
		def, err := g.definition(t, reflect.TypeOf(kind).Elem().Name())
		if err != nil {
			return nil, fmt.Errorf("kind %s: %w", t.Kind, err)
		}
		text, err := marshal(def)
		if err != nil {
			return nil, fmt.Errorf("kind %s: %w", t.Kind, err)
		}
		out[path.Join(crdDir, t.Group+"_"+t.Plural+".yaml")] = text
	}
	return out, nil
}

type generator struct {
	parser *crd.Parser
	pkg    *loader.Package
}

func load(root string) (*generator, error) {
	pkgs, err := loader.LoadRootsWithConfig(&packages.Config{Dir: root}, "./internal/api")
	if err != nil {
		return nil, fmt.Errorf("loading internal/api: %w", err)
	}
	registry := &markers.Registry{}
	if err := errors.Join(crdmarkers.Register(registry), registerOwn(registry)); err != nil {
		return nil, fmt.Errorf("registering markers: %w", err)
	}
	parser := &crd.Parser{
		Collector: &markers.Collector{Registry: registry},
		Checker:   &loader.TypeChecker{NodeFilters: []loader.NodeFilter{}},
		// Calico's orders are floating point numbers.
		AllowDangerousTypes: true,
	}
	parser.NeedPackage(pkgs[0])
	return &generator{parser: parser, pkg: pkgs[0]}, nil
}

// schema returns the schema of one Go type with all that it refers to inlined.
func (g *generator) schema(name string) (apiext.JSONSchemaProps, error) {
	ident := crd.TypeIdent{Package: g.pkg, Name: name}
	g.parser.NeedFlattenedSchemaFor(ident)
	// The parser does not load all imports, so that they result in type errors, which are ignored.
	if loader.PrintErrors([]*loader.Package{g.pkg}, packages.TypeError) {
		return apiext.JSONSchemaProps{}, fmt.Errorf("type %s has no schema (the reasons are above)", name)
	}
	return g.parser.FlattenedSchemata[ident], nil
}

// definition returns that of a kind, whose Go type may have another name.
func (g *generator) definition(t api.Type, name string) (*apiext.CustomResourceDefinition, error) {
	info, ok := g.parser.Types[crd.TypeIdent{Package: g.pkg, Name: name}]
	if !ok {
		return nil, errors.New("no such Go type in internal/api")
	}
	version, err := g.version(t, name, info)
	if err != nil {
		return nil, err
	}
	def := &apiext.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		// The label marks definitions of Tortie, which an upgrade may replace, unlike Calico's.
		ObjectMeta: metav1.ObjectMeta{Name: t.Plural + "." + t.Group, Labels: map[string]string{definitions.Label: definitions.Owner}},
		Spec: apiext.CustomResourceDefinitionSpec{
			Group: t.Group,
			Names: apiext.CustomResourceDefinitionNames{
				Kind: t.Kind, ListKind: t.Kind + "List", Plural: t.Plural, Singular: strings.ToLower(t.Kind),
				ShortNames: shortNames[t.Plural],
			},
			Scope:    apiext.ClusterScoped,
			Versions: []apiext.CustomResourceDefinitionVersion{*version},
		},
	}
	if t.Namespaced {
		def.Spec.Scope = apiext.NamespaceScoped
	}
	return def, applyColumns(def, info, t.Version)
}

// version returns the version of a kind: its schema and subresources.
func (g *generator) version(t api.Type, name string, info *markers.TypeInfo) (*apiext.CustomResourceDefinitionVersion, error) {
	spec, err := g.schema(name + "Spec")
	if err != nil {
		return nil, err
	}
	if err := keep(&spec, t.Kind); err != nil {
		return nil, err
	}
	properties := map[string]apiext.JSONSchemaProps{
		"apiVersion": {Type: "string"},
		"kind":       {Type: "string"},
		"metadata":   {Type: "object"},
		"spec":       spec,
	}
	version := &apiext.CustomResourceDefinitionVersion{Name: t.Version, Served: true, Storage: true}
	if _, ok := g.parser.Types[crd.TypeIdent{Package: g.pkg, Name: name + "Status"}]; ok {
		status, err := g.schema(name + "Status")
		if err != nil {
			return nil, err
		}
		if running, ok := status.Properties["runningConfig"]; ok { // a spec
			if err := keep(&running, t.Kind); err != nil {
				return nil, err
			}
			status.Properties["runningConfig"] = running
		}
		properties["status"] = status
		if !wholeObjects[t.Kind] {
			version.Subresources = &apiext.CustomResourceSubresources{Status: &apiext.CustomResourceSubresourceStatus{}}
		}
	}
	root := &apiext.JSONSchemaProps{Type: "object", Description: info.Doc, Properties: properties}
	if len(spec.Required) > 0 {
		root.Required = []string{"spec"}
	}
	version.Schema = &apiext.CustomResourceValidation{OpenAPIV3Schema: root}
	if err := errors.Join(applyRules(root, info), untyped(root)); err != nil {
		return nil, err
	}
	if strings.HasPrefix(t.Kind, "Staged") {
		unruled(root)
	}
	return version, nil
}

// keep adds the fields of Calico's that the spec of a kind keeps, for any value.
func keep(spec *apiext.JSONSchemaProps, kind string) error {
	*spec = *spec.DeepCopy()
	for _, path := range api.Unacted[kind] {
		at, names := spec, strings.Split(path, ".")
		last := len(names) - 1
		for _, name := range names[:last] {
			inner, ok := at.Properties[name]
			if !ok {
				return fmt.Errorf("api.Unacted %s of %s: there is no %s", path, kind, name)
			}
			at = &inner // shares the map of its properties
		}
		if _, ok := at.Properties[names[last]]; ok {
			return fmt.Errorf("api.Unacted %s of %s: the Go type has it: remove it from the list", path, kind)
		}
		any := true
		at.Properties[names[last]] = apiext.JSONSchemaProps{XPreserveUnknownFields: &any, Description: "Kept; Tortie does not act on it."}
	}
	return nil
}

// unruled removes the rules of a schema. Each costs the API server 5 ms when it takes a definition and again when it
// first serves the kind, and what staged policies say harms nobody: Events name their problems.
func unruled(schema *apiext.JSONSchemaProps) {
	schema.XValidations = nil
	for name, property := range schema.Properties {
		unruled(&property)
		schema.Properties[name] = property
	}
	if schema.Items != nil {
		unruled(schema.Items.Schema)
	}
}

// applyRules adds the rules on a whole object, such as on its name.
func applyRules(root *apiext.JSONSchemaProps, info *markers.TypeInfo) error {
	for _, marker := range info.Markers["kubebuilder:validation:XValidation"] {
		rule, ok := marker.(crdmarkers.XValidation)
		if !ok {
			return fmt.Errorf("marker XValidation parsed as %T", marker)
		}
		if err := rule.ApplyToSchema(nil, root); err != nil {
			return fmt.Errorf("rule %s: %w", rule.Rule, err)
		}
	}
	return nil
}

// applyColumns adds what the type's printcolumn markers ask `kubectl get` to show.
func applyColumns(def *apiext.CustomResourceDefinition, info *markers.TypeInfo, version string) error {
	for _, marker := range info.Markers["kubebuilder:printcolumn"] {
		column, ok := marker.(crdmarkers.PrintColumn)
		if !ok {
			return fmt.Errorf("marker printcolumn parsed as %T", marker)
		}
		if err := column.ApplyToCRD(&def.Spec, version); err != nil {
			return fmt.Errorf("column %s: %w", column.Name, err)
		}
	}
	return nil
}

// marshal encodes a definition without status and creation time.
func marshal(def *apiext.CustomResourceDefinition) ([]byte, error) {
	text, err := yaml.Marshal(def)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	delete(tree, "status")
	if meta, ok := tree["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	text, err = yaml.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	return append([]byte("# Generated from internal/api by hack/generate (make generate).\n"), text...), nil
}
