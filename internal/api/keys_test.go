package api

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestEveryFieldOfCalico: each field of Calico's definitions of the kinds that people write is either in the Go type,
// if it is acted on or refused, or in Unacted, if it has no effect. Fields of the Go types that no program reads are
// Kept.
func TestEveryFieldOfCalico(t *testing.T) {
	text, err := os.ReadFile("testdata/calico-fields.txt")
	errtest.Must(t, err)
	types := map[string]reflect.Type{}
	for kind, spec := range map[string]any{
		"BGPConfiguration": BGPConfigurationSpec{}, "BGPPeer": BGPPeerSpec{}, "FelixConfiguration": FelixConfigurationSpec{},
		"KubeControllersConfiguration": KubeControllersConfigurationSpec{},
	} {
		addPaths(types, kind+" ", reflect.TypeOf(spec))
	}
	seen := 0
	for line := range strings.Lines(string(text)) {
		field := strings.TrimSpace(line)
		if strings.HasPrefix(field, "#") {
			continue
		}
		seen++
		kind, path, _ := strings.Cut(field, " ")
		_, typed := types[field]
		if listed := slices.Contains(Unacted[kind], path); typed == listed {
			t.Errorf("%s: in the Go type %v, in Unacted %v; want one of the two", field, typed, listed)
		}
	}
	if seen < 240 {
		t.Errorf("%d fields", seen)
	}
	for kind, paths := range Kept {
		for path := range paths {
			if types[kind+" "+path] == nil {
				t.Errorf("Kept has %s of %s, which the Go type lacks", path, kind)
			}
		}
	}
	for kind, paths := range Unacted {
		for _, path := range paths {
			if !strings.Contains(string(text), "\n"+kind+" "+path+"\n") {
				t.Errorf("Unacted has %s of %s, which is no field of Calico's", path, kind)
			}
		}
	}
}

// TestKeysWithoutEffect: each field without effect is among the keys of a spec that has it.
// internal/program/controllers and internal/agent hold that Events and the status name these.
func TestKeysWithoutEffect(t *testing.T) {
	kinds := map[string]Keyed{
		"BGPConfiguration": &BGPConfiguration{}, "FelixConfiguration": &FelixConfiguration{},
		"KubeControllersConfiguration": &KubeControllersConfiguration{},
	}
	for kind, paths := range Unacted {
		for _, path := range paths {
			text := `{"any":"form"}`
			for _, key := range slices.Backward(append([]string{"spec"}, strings.Split(path, ".")...)) {
				text = `{"` + key + `":` + text + `}`
			}
			obj := NewLike(kinds[kind]).(Keyed)
			errtest.Must(t, json.Unmarshal([]byte(text), obj))
			difftest.Want(t, kind+" "+path, []string{"spec." + path}, obj.StrangeKeys().WithoutEffect())
		}
	}
}

// addPaths adds the types of a struct's fields by their paths.
func addPaths(into map[string]reflect.Type, path string, t reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for key, of := range fieldTypes(t) {
		into[path+key] = of
		addPaths(into, path+key+".", of)
	}
}

// Keys are distinguished by case, unlike by encoding/json, and the others are reported.
func TestDecodeExactly(t *testing.T) {
	var f FelixConfigurationSpec
	errtest.Must(t, json.Unmarshal([]byte(`{"FailsafeInboundHostPorts":[{"port":1}],"failsafeOutboundHostPorts":[{"Port":2,"port":3}],
		"wireguardEnbled":true,"bpfEnabled":false,"vxlanPort":4790}`), &f))
	difftest.Want(t, "keys", Keys{Unknown: []string{"FailsafeInboundHostPorts", "failsafeOutboundHostPorts.Port", "wireguardEnbled"},
		Unacted: []string{"bpfEnabled"}}, f.Keys)
	if f.FailsafeInboundHostPorts != nil || len(*f.FailsafeOutboundHostPorts) != 1 ||
		(*f.FailsafeOutboundHostPorts)[0].Port != 3 || *f.VXLANPort != 4790 {
		t.Errorf("%+v", f)
	}
	var c KubeControllersConfigurationSpec
	errtest.Must(t, json.Unmarshal(
		[]byte(`{"controllers":{"node":{"leakGracePeriode":"1m","leakGracePeriod":"2m"},"policy":{"reconcilerPeriod":"1m"}}}`), &c))
	difftest.Want(t, "keys", Keys{Unknown: []string{"controllers.node.leakGracePeriode"}, Unacted: []string{"controllers.policy"}}, c.Keys)
	if err := c.Keys.Misspelt((*KubeControllersConfiguration)(nil).ResourceType()); !errtest.Names(err,
		"spec.controllers.node.leakGracePeriode") || c.Controllers.Node.LeakGracePeriod != "2m" {
		t.Errorf("%v, %+v", err, c.Controllers.Node)
	}
	for text, want := range map[string][]string{
		`{"logSeverityScreen":"Debug","reportingInterval":"1m","bpfEnabled":true}`: {"bpfEnabled", "logSeverityScreen", "reportingInterval"},
		`{"logSeverityScreen":"Info","reportingInterval":"0s"}`:                    nil,
		`{"logSeverityScreen":null}`:                                               nil,
	} {
		var f FelixConfigurationSpec
		errtest.Must(t, json.Unmarshal([]byte(text), &f))
		difftest.Want(t, text, Keys{Unacted: want}, f.Keys)
	}
	var b BGPConfigurationSpec
	errtest.Must(t, json.Unmarshal([]byte(`{"ignoredInterfaces":["eth1"],"logSeverityScreen":"Info"}`), &b))
	difftest.Want(t, "keys", Keys{Unacted: []string{"ignoredInterfaces"}}, b.Keys)
	var p BGPPeerSpec
	for text, fails := range map[string]bool{`null`: false, `{"filters":null,"password":{"secretKeyRef":null}}`: false, `[]`: true,
		`{"asNumber":"1"}`: true} {
		if err := json.Unmarshal([]byte(text), &p); (err != nil) != fails {
			t.Errorf("%s: %v", text, err)
		}
	}
}
