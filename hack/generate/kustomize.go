package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
)

const (
	baseDir     = "manifests/kustomize/base"
	overlaysDir = "manifests/kustomize/overlays"
	valuesName  = "values.yaml" // the only hand-written file of an overlay

	generatedHead = "# Generated from charts/tortie (make generate).\n"
)

// kustomize returns the base, which is the chart with its default values, and the overlays: the differences that other
// values make.
func kustomize(o options) (files, error) {
	definitions, err := crdTexts(o)
	if err != nil {
		return nil, err
	}
	base, err := render(o, "--no-hooks")
	if err != nil {
		return nil, err
	}
	plain, err := unfolded(base)
	if err != nil {
		return nil, err
	}
	out := files{
		baseDir + "/definitions.yaml":   append([]byte(generatedHead), definitions...),
		baseDir + "/tortie.yaml":        append([]byte(generatedHead), plain...),
		baseDir + "/kustomization.yaml": kustomization([]string{"definitions.yaml", "tortie.yaml"}, nil),
	}
	all, err := filepath.Glob(filepath.Join(o.root, overlaysDir, "*", valuesName))
	if err != nil || len(all) == 0 {
		return nil, fmt.Errorf("no overlays in %s: %w", overlaysDir, err)
	}
	for _, values := range all {
		want, err := render(o, "--no-hooks", "--values", values)
		if err != nil {
			return nil, err
		}
		one, err := overlay(path.Join(overlaysDir, filepath.Base(filepath.Dir(values))), base, want)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", values, err)
		}
		maps.Copy(out, one)
	}
	return out, nil
}

// unfolded rewrites objects with folded text (>-): kustomize adds a line to such text before each line with more
// indentation.
func unfolded(text []byte) ([]byte, error) {
	const between = "\n---\n"
	documents := bytes.Split(text, []byte(between))
	for i, document := range documents {
		if !bytes.Contains(document, []byte(">-\n")) {
			continue
		}
		tree := map[string]any{}
		err := yaml.Unmarshal(document, &tree)
		if err != nil {
			return nil, err
		}
		if documents[i], err = yaml.Marshal(tree); err != nil {
			return nil, err
		}
	}
	return bytes.Join(documents, []byte(between)), nil
}

// crdTexts returns all definitions of groups.V1, which new clusters get, as one file.
func crdTexts(o options) ([]byte, error) {
	names, err := filepath.Glob(filepath.Join(o.root, definitionDirs[groups.V1], "*.yaml"))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading definition: %w", err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}

func kustomization(resources, patches []string) []byte {
	var out strings.Builder
	out.WriteString(generatedHead + "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
	for _, r := range resources {
		fmt.Fprintf(&out, "  - %s\n", r)
	}
	if len(patches) > 0 {
		out.WriteString("patches:\n")
	}
	for _, p := range patches {
		fmt.Fprintf(&out, "  - path: %s\n", p)
	}
	return []byte(out.String())
}

// overlay returns the files that turn base into want: patches of changed objects, and new objects.
func overlay(dir string, base, want []byte) (files, error) {
	have, err := objectsOf(base)
	if err != nil {
		return nil, err
	}
	wanted, err := objectsOf(want)
	if err != nil {
		return nil, err
	}
	var patches, added []map[string]any
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		old, ok := have[key]
		if !ok {
			added = append(added, wanted[key].Object)
			continue
		}
		if reflect.DeepEqual(old.Object, wanted[key].Object) {
			continue
		}
		patch, err := patchOf(old, wanted[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		patches = append(patches, patch)
	}
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if _, ok := wanted[key]; !ok {
			patch := head(have[key])
			patch["$patch"] = "delete"
			patches = append(patches, patch)
		}
	}
	return overlayFiles(dir, added, patches)
}

func overlayFiles(dir string, added, patches []map[string]any) (files, error) {
	out, resources, patchFiles := files{}, []string{"../../base"}, []string(nil)
	for name, trees := range map[string][]map[string]any{"resources.yaml": added, "patches.yaml": patches} {
		if len(trees) == 0 {
			continue
		}
		text, err := documents(trees)
		if err != nil {
			return nil, err
		}
		out[dir+"/"+name] = text
		if name == "resources.yaml" {
			resources = append(resources, name)
		} else {
			patchFiles = append(patchFiles, name)
		}
	}
	out[dir+"/kustomization.yaml"] = kustomization(resources, patchFiles)
	return out, nil
}

func documents(trees []map[string]any) ([]byte, error) {
	out := bytes.NewBufferString(generatedHead)
	for i, tree := range trees {
		if i > 0 {
			out.WriteString("---\n")
		}
		text, err := yaml.Marshal(tree)
		if err != nil {
			return nil, err
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}

// objectsOf decodes a stream of objects, by kind, namespace and name.
func objectsOf(text []byte) (map[string]*unstructured.Unstructured, error) {
	all := map[string]*unstructured.Unstructured{}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		obj := &unstructured.Unstructured{}
		switch err := decoder.Decode(&obj.Object); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		case len(obj.Object) > 0:
			all[obj.GetKind()+" "+obj.GetNamespace()+"/"+obj.GetName()] = obj
		}
	}
}

// head returns the fields by which a patch identifies its object.
func head(obj *unstructured.Unstructured) map[string]any {
	meta := map[string]any{"name": obj.GetName()}
	if ns := obj.GetNamespace(); ns != "" {
		meta["namespace"] = ns
	}
	return map[string]any{"apiVersion": obj.GetAPIVersion(), "kind": obj.GetKind(), "metadata": meta}
}

// patchOf returns the strategic merge patch from one object to the other.
func patchOf(from, to *unstructured.Unstructured) (map[string]any, error) {
	typed, err := scheme.Scheme.New(from.GroupVersionKind())
	if err != nil {
		return nil, fmt.Errorf("kustomize knows no patch of this kind: %w", err)
	}
	before, err := from.MarshalJSON()
	if err != nil {
		return nil, err
	}
	after, err := to.MarshalJSON()
	if err != nil {
		return nil, err
	}
	text, err := strategicpatch.CreateTwoWayMergePatch(before, after, typed)
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	if err := yaml.Unmarshal(text, &patch); err != nil {
		return nil, err
	}
	withoutOrder(patch)
	merge(patch, head(from))
	return patch, nil
}

// withoutOrder removes the directives for the order of lists, which only the API server supports.
func withoutOrder(tree any) {
	switch t := tree.(type) {
	case map[string]any:
		for key, value := range t {
			if strings.HasPrefix(key, "$setElementOrder/") {
				delete(t, key)
				continue
			}
			withoutOrder(value)
		}
	case []any:
		for _, value := range t {
			withoutOrder(value)
		}
	}
}

func merge(into, from map[string]any) {
	for key, value := range from {
		inner, ok := value.(map[string]any)
		if have, both := into[key].(map[string]any); ok && both {
			merge(have, inner)
			continue
		}
		into[key] = value
	}
}
