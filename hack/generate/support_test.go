package main

import (
	"maps"
	"reflect"
	"strings"
	"testing"
)

// A field that is added to a kind, and one that is taken away, has to be dealt with.
func TestPolicyFieldsAreComplete(t *testing.T) {
	if _, err := policyFields(); err != nil {
		t.Fatal(err)
	}
	rule := supported["CalicoRule"].fields
	was := maps.Clone(rule)
	defer maps.Copy(rule, was)
	delete(rule, "notICMP")
	if _, err := policyFields(); err == nil || !strings.Contains(err.Error(), "CalicoRule.notICMP") {
		t.Errorf("a field of which nothing is said: %v", err)
	}
	rule["notICMP"], rule["gone"] = was["notICMP"], does("")
	defer delete(rule, "gone")
	if _, err := policyFields(); err == nil || !strings.Contains(err.Error(), "CalicoRule.gone") {
		t.Errorf("a field that does not exist: %v", err)
	}
}

// Every kind of policy that has a definition is on the page.
func TestPolicyKindsAreComplete(t *testing.T) {
	for _, kind := range kinds {
		of := reflect.TypeOf(kind).Elem()
		spec, ok := of.FieldByName("Spec")
		if !ok || !strings.HasPrefix(of.Name(), "Calico") || of.Name() == "CalicoNodeStatus" {
			continue
		}
		found := false
		for _, t := range policyTypes {
			found = found || t == spec.Type
		}
		if !found {
			t.Errorf("%s is not in policyTypes", spec.Type)
		}
	}
}
