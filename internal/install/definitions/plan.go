package definitions

import (
	"fmt"
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Label with the value Owner marks our own definitions, which may be replaced.
const (
	Label = "app.kubernetes.io/part-of"
	Owner = "tortie"
)

// Action is the operation on one definition.
type Action string

// The actions.
const (
	Create  Action = "created"
	Replace Action = "brought up to date"
	Extend  Action = "of another installation, extended by what it lacks"
	Keep    Action = "up to date"
	Leave   Action = "of another installation, left as it is"
)

// Decision is an action and the object to write, nil for Keep and Leave.
type Decision struct {
	Action Action
	Object *unstructured.Unstructured
}

// Decide returns the operation on a definition; have is the cluster's, nil if there is none. The error means that the
// two can't be reconciled, and names the remedy.
func Decide(have, want *unstructured.Unstructured) (Decision, error) {
	if have == nil {
		return Decision{Create, want}, nil
	}
	if err := compatible(have, want); err != nil {
		return Decision{}, err
	}
	theirs, ours := spec(have), spec(want)
	merged := have.DeepCopy()
	if have.GetLabels()[Label] != Owner {
		merged.Object["spec"] = merge(theirs, ours)
		if reflect.DeepEqual(merged.Object, have.Object) {
			return Decision{Leave, nil}, nil
		}
		return Decision{Extend, merged}, nil
	}
	merged.Object["spec"] = withDefaults(merge(ours, theirs), theirs)
	merged.SetLabels(joined(have.GetLabels(), want.GetLabels()))
	merged.SetAnnotations(joined(have.GetAnnotations(), want.GetAnnotations()))
	if reflect.DeepEqual(merged.Object, have.Object) {
		return Decision{Keep, nil}, nil
	}
	return Decision{Replace, merged}, nil
}

func spec(definition *unstructured.Unstructured) map[string]any {
	tree, _, _ := unstructured.NestedMap(definition.Object, "spec")
	return tree
}

// withDefaults adds the fields that only the cluster's definition has: the API server fills them in, such as the
// conversion of versions.
func withDefaults(spec, have map[string]any) map[string]any {
	for key, value := range have {
		if _, ok := spec[key]; !ok {
			spec[key] = value
		}
	}
	return spec
}

func joined(have, want map[string]string) map[string]string {
	all := maps.Clone(have)
	if all == nil && len(want) > 0 {
		all = map[string]string{}
	}
	maps.Copy(all, want)
	return all
}

// compatible rejects changes that the API server would reject; its error names the remedy.
func compatible(have, want *unstructured.Unstructured) error {
	for _, path := range [][]string{{"spec", "scope"}, {"spec", "names", "kind"}} {
		theirs, _, _ := unstructured.NestedString(have.Object, path...)
		ours, _, _ := unstructured.NestedString(want.Object, path...)
		if theirs != ours {
			return fmt.Errorf("definition %s: %s is %q in the cluster and must be %q, which can't be changed: "+
				"save its objects (kubectl get %s -A -o yaml), delete the definition, and run this again",
				want.GetName(), path[len(path)-1], theirs, ours, want.GetName())
		}
	}
	return nil
}
