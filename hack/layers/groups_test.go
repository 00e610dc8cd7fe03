package layers

import (
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const ownsGroups = "internal/api/groups"

// namesGroups has the packages that may name one of Calico's two API groups, with the reason. None of them knows the
// form of an object in either: only ownsGroups does.
var namesGroups = map[string]string{
	"internal/agent":                "carries the addresses in use on its node to the group to which the objects have moved",
	"internal/agent/policyview":     "a file of policies says itself of which group its objects are",
	"internal/api":                  "the type of a kind says the group that the model is called by",
	"internal/app/config":           "the help and the error of a setting have its values",
	"internal/cluster":              "a client for each group; definitions before the group is found",
	"internal/controllers":          "pools and tiers have a controller in projectcalico.org/v3 only",
	"internal/controllers/migrate":  "moves the objects from one group to the other",
	"internal/datastore/etcd":       "objects in etcd have the apiVersion of Calico's clients: there are no groups",
	"internal/datastore/kubernetes": "asks the ClusterInformation of both, and looks for definitions of both",
	"internal/install":              "a token is tried by a request that has an answer in either group",
	"internal/install/definitions":  "installs definitions of one group only where the other one is not in use",
	"internal/plugin":               "the help and the error of a key have its values; looks first where most clusters have their objects",
	"internal/program/controllers":  "opens a datastore in each group for a move",
}

// groupText is the name of one of the groups in a text.
var groupText = regexp.MustCompile(`crd\.projectcalico\.org|(^|[^.\w-])projectcalico\.org/v3`)

// TestGroups: no other package knows that there are two API groups.
func TestGroups(t *testing.T) {
	own := load(t)
	unused := maps.Clone(namesGroups)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if name == ownsGroups || slices.Contains(testOnly, name) || strings.HasPrefix(name, "internal/testkit/") {
			continue
		}
		found := groupsIn(own[name])
		if delete(unused, name); namesGroups[name] == "" && len(found) > 0 {
			t.Errorf("%s names %s: ask %s, by the group that the cluster has, or give a reason in this test",
				name, strings.Join(found, ", "), ownsGroups)
		}
		if namesGroups[name] != "" && len(found) == 0 {
			t.Errorf("%s names no group: take it from the list", name)
		}
	}
	for name := range unused {
		t.Errorf("there is no package %s: was it renamed?", name)
	}
}

// groupsIn returns what in a package names a group: texts, but no comments, and constants.
func groupsIn(p *packages.Package) (found []string) {
	for _, file := range p.Syntax {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING && groupText.MatchString(n.Value) {
					found = append(found, groupText.FindString(n.Value)+" at "+p.Fset.Position(n.Pos()).String())
				}
			case *ast.SelectorExpr:
				if n.Sel.Name == "Other" { // of groups.Group
					found = append(found, "the other group at "+p.Fset.Position(n.Pos()).String())
				}
				of, ok := n.X.(*ast.Ident)
				if ok && slices.Contains([]string{"groups.V1", "groups.V3", "groups.All", "api.Group"}, of.Name+"."+n.Sel.Name) {
					found = append(found, of.Name+"."+n.Sel.Name+" at "+p.Fset.Position(n.Pos()).String())
				}
			}
			return true
		})
	}
	return found
}
