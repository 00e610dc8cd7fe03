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
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/install/definitions"
)

// definitionDirs are the directories of each group's definitions. Definitions of projectcalico.org/v3 need Kubernetes
// 1.32, like Calico's: for older API servers a rule that compares two CIDRs is too expensive.
var definitionDirs = map[groups.Group]string{groups.V1: "charts/tortie/definitions/v1", groups.V3: "charts/tortie/definitions/v3"}

// The kinds with a definition. Node, Pod and Namespace are Kubernetes' own.
var kinds = []api.Resource{
	&api.IPPool{}, &api.IPReservation{}, &api.IPAMBlock{}, &api.BlockAffinity{}, &api.IPAMHandle{}, &api.IPAMConfig{},
	&api.ClusterInformation{}, &api.BGPConfiguration{}, &api.BGPPeer{}, &api.BGPFilter{}, &api.FelixConfiguration{},
	&api.CalicoNodeStatus{}, &api.KubeControllersConfiguration{},
	&api.CalicoNetworkPolicy{}, &api.CalicoGlobalNetworkPolicy{}, &api.CalicoTier{}, &api.CalicoNetworkSet{}, &api.CalicoGlobalNetworkSet{},
	&api.CalicoHostEndpoint{}, &api.CalicoStagedNetworkPolicy{}, &api.CalicoStagedGlobalNetworkPolicy{},
	&api.CalicoStagedKubernetesNetworkPolicy{},
}

// shortNames are the short names of Calico's API server, by plural; it lacks gns, which accompanies gnp.
var shortNames = map[string][]string{
	"networkpolicies":       {"cnp", "caliconetworkpolicy", "caliconetworkpolicies"},
	"globalnetworkpolicies": {"gnp", "cgnp", "calicoglobalnetworkpolicies"},
	"networksets":           {"netsets"}, "globalnetworksets": {"gns"}, "hostendpoints": {"hep", "heps"},
	"blockaffinities":   {"affinity", "affinities"},
	"bgpconfigurations": {"bgpconfig", "bgpconfigs"}, "felixconfigurations": {"felixconfig", "felixconfigs"},
	"kubecontrollersconfigurations": {"kcconfig"}, "clusterinformations": {"clusterinfo"},
}

// shortNamesV3 are the short names in Calico's definitions of projectcalico.org/v3, which its users type.
var shortNamesV3 = map[string][]string{
	"networkpolicies": {"cnp", "caliconetworkpolicy"}, "globalnetworkpolicies": {"gnp", "cgnp"}, "globalnetworksets": {"gns"},
	"stagednetworkpolicies": {"scnp", "snp"}, "stagedglobalnetworkpolicies": {"sgnp"}, "stagedkubernetesnetworkpolicies": {"sknp"},
	"hostendpoints": {"hep", "heps"}, "blockaffinities": {"affinity", "affinities"}, "ipamconfigurations": {"ipamconfig", "ipamconfigs"},
	"bgpconfigurations": {"bgpconfig", "bgpconfigs"}, "clusterinformations": {"clusterinfo", "clusterinfos"},
	"kubecontrollersconfigurations": {"kcc", "kccs"},
}

// statusInV3 are kinds that have a status in projectcalico.org/v3 only.
var statusInV3 = map[string]bool{"Tier": true}

// tiered are kinds with a tier that clients select by a field, in projectcalico.org/v3 only.
var tiered = map[string]bool{
	"NetworkPolicy": true, "GlobalNetworkPolicy": true, "StagedNetworkPolicy": true, "StagedGlobalNetworkPolicy": true,
}

// wholeObjects are kinds without a status subresource in crd.projectcalico.org/v1: their clients write spec and status
// in one request, and the API server would drop its status.
var wholeObjects = map[string]bool{"CalicoNodeStatus": true, "KubeControllersConfiguration": true}

// crds returns the CustomResourceDefinitions of Calico's resources in both API groups. Their source is internal/api:
// its comments become the descriptions and its markers the rules.
func crds(root string) (files, error) {
	pkgs, err := loader.LoadRootsWithConfig(&packages.Config{Dir: root}, "./internal/api")
	if err != nil {
		return nil, fmt.Errorf("loading internal/api: %w", err)
	}
	out := files{}
	for _, group := range []groups.Group{groups.V1, groups.V3} {
		if err := definitionsOf(group, pkgs[0], out); err != nil {
			return nil, fmt.Errorf("definitions of %s: %w", group, err)
		}
	}
	return out, nil
}

// definitionsOf adds the files of one group.
func definitionsOf(group groups.Group, pkg *loader.Package, out files) error {
	g, err := newGenerator(group, pkg)
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		t := group.Type(kind.ResourceType())
		def, err := g.definition(t, reflect.TypeOf(kind).Elem().Name())
		if err != nil {
			return fmt.Errorf("kind %s: %w", t.Kind, err)
		}
		text, err := marshal(def)
		if err != nil {
			return fmt.Errorf("kind %s: %w", t.Kind, err)
		}
		out[path.Join(definitionDirs[group], t.Group+"_"+t.Plural+".yaml")] = text
	}
	return nil
}

// generator makes the definitions of one group.
type generator struct {
	group  groups.Group
	parser *crd.Parser
	pkg    *loader.Package
}

func newGenerator(group groups.Group, pkg *loader.Package) (*generator, error) {
	registry := &markers.Registry{}
	if err := errors.Join(crdmarkers.Register(registry), registerOwn(registry, group)); err != nil {
		return nil, fmt.Errorf("registering markers: %w", err)
	}
	parser := &crd.Parser{
		Collector: &markers.Collector{Registry: registry},
		Checker:   &loader.TypeChecker{NodeFilters: []loader.NodeFilter{}},
		// Calico's orders are floating point numbers.
		AllowDangerousTypes: true,
	}
	parser.NeedPackage(pkg)
	return &generator{group: group, parser: parser, pkg: pkg}, nil
}

// schema returns the schema of one Go type with everything that it refers to inlined.
func (g *generator) schema(name string) (apiext.JSONSchemaProps, error) {
	ident := crd.TypeIdent{Package: g.pkg, Name: name}
	g.parser.NeedFlattenedSchemaFor(ident)
	// The parser does not load all imports, so that they result in type errors, which are ignored.
	if loader.PrintErrors([]*loader.Package{g.pkg}, packages.TypeError) {
		return apiext.JSONSchemaProps{}, fmt.Errorf("type %s has no schema (the reasons are above)", name)
	}
	return g.parser.FlattenedSchemata[ident], nil
}

// definition returns the definition of a kind. name is the Go type's, which may differ.
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
				ShortNames: g.shortNames(t.Plural),
			},
			Scope:    apiext.ClusterScoped,
			Versions: []apiext.CustomResourceDefinitionVersion{*version},
		},
	}
	if t.Namespaced {
		def.Spec.Scope = apiext.NamespaceScoped
	}
	return def, g.applyColumns(def, info)
}

func (g *generator) shortNames(plural string) []string {
	if g.group == groups.V3 {
		return shortNamesV3[plural]
	}
	return shortNames[plural]
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
	v3 := g.group == groups.V3
	if _, ok := g.parser.Types[crd.TypeIdent{Package: g.pkg, Name: name + "Status"}]; ok && (v3 || !statusInV3[t.Kind]) {
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
		if v3 || !wholeObjects[t.Kind] {
			version.Subresources = &apiext.CustomResourceSubresources{Status: &apiext.CustomResourceSubresourceStatus{}}
		}
	}
	root := &apiext.JSONSchemaProps{Type: "object", Description: info.Doc, Properties: properties}
	switch {
	case v3:
		root.Required = []string{"metadata", "spec"}
	case len(spec.Required) > 0:
		root.Required = []string{"spec"}
	}
	version.Schema = &apiext.CustomResourceValidation{OpenAPIV3Schema: root}
	if err := errors.Join(applyRules(root, info), untyped(root)); err != nil {
		return nil, err
	}
	if strings.HasPrefix(t.Kind, "Staged") && !v3 { // Calico's have them
		unruled(root)
	}
	if v3 && tiered[t.Kind] {
		version.SelectableFields = []apiext.SelectableField{{JSONPath: ".spec.tier"}}
	}
	return version, nil
}

// keep adds the fields of Calico's that the spec of a kind keeps, with any value.
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

// unruled removes the rules of a schema. Each costs the API server 5 ms when it accepts a definition and again when it
// first serves the kind, and errors in staged policies are harmless: Events report them.
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
	for _, name := range []string{"kubebuilder:validation:XValidation", schemaV3Name, ruleV3Name} {
		for _, marker := range info.Markers[name] {
			rule, ok := marker.(crd.SchemaMarker)
			if !ok {
				continue // of the other group
			}
			if err := rule.ApplyToSchema(nil, root); err != nil {
				return fmt.Errorf("marker %s: %w", name, err)
			}
		}
	}
	return nil
}

// applyColumns adds the columns of `kubectl get` from the type's markers.
func (g *generator) applyColumns(def *apiext.CustomResourceDefinition, info *markers.TypeInfo) error {
	all := info.Markers["kubebuilder:printcolumn"]
	if g.group == groups.V3 {
		all = info.Markers[columnV3Name]
	}
	for _, marker := range all {
		column, ok := marker.(crdmarkers.PrintColumn)
		if own, isOwn := marker.(columnV3); isOwn {
			column, ok = crdmarkers.PrintColumn(own), true
		}
		if !ok {
			return fmt.Errorf("marker of a column parsed as %T", marker)
		}
		if err := column.ApplyToCRD(&def.Spec, def.Spec.Versions[0].Name); err != nil {
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
