package cni

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
)

// wantCode fails the test if an error has no CNI code of its own: bad input is never an internal error.
func wantCode(t *testing.T, err error) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code == types.ErrInternal || e.Code == types.ErrUnknown {
		t.Errorf("error %v has no code of its own", err)
	}
}

func FuzzConf(f *testing.F) {
	golden, err := os.ReadFile("testdata/golden/stdin-conf.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		string(golden), minimalConf, "", "{}", "null", "[]", `{"name":1}`, `{"ipam":{"type":"x"},"ipam":null}`,
		`{"name":"n","policy":{"type":"k8s"},"kubernetes":{"kubeconfig":"k"},"IPAM":{"type":"x"}}`,
		`{"name":"n","policy":{"type":"k8s"},"kubernetes":{"kubeconfig":"k"},"ipam":{"type":"x"},"ipam":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stdin []byte) {
		conf, err := parseConf(stdin)
		if err != nil {
			wantCode(t, err)
			return
		}
		if conf.Name == "" || conf.IPAM.Type == "" || conf.Kubernetes.Kubeconfig == "" {
			t.Errorf("%s passes as a configuration", stdin)
		}
	})
}

func FuzzArgs(f *testing.F) {
	for _, seed := range []string{
		"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;X=1", "", ";", "=", "a=b=c",
		"CommonArgs=1", "IgnoreUnknown=maybe", "K8S_POD_NAMESPACE=..;K8S_POD_NAME=%2e",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRequest(&skel.CmdArgs{StdinData: []byte(minimalConf), Args: text})
		if err != nil {
			wantCode(t, err)
			return
		}
		for _, name := range []string{r.namespace, r.pod} {
			if !objectName.MatchString(name) {
				t.Errorf("%q passes as a name", name)
			}
		}
	})
}

func FuzzAnnotations(f *testing.F) {
	for _, seed := range []string{`["default-ipv4-ippool"]`, `["10.0.0.0/8","b"]`, "", "[]", "null", "{}", `"a"`, `[null]`, "[\"\xff\"]", "["} {
		f.Add(seed, `["n"]`)
		f.Add("", seed)
	}
	f.Fuzz(func(t *testing.T, ofPod, ofNamespace string) {
		w := shop(map[string]string{api.AnnotationIPv4Pools: ofPod}, map[string]string{
			api.AnnotationIPv4Pools: ofNamespace, api.AnnotationIPv6Pools: ofPod,
		})
		got, err := (&request{}).wish(w)
		if err != nil {
			wantCode(t, err)
			return
		}
		want := ofPod
		if want == "" {
			want = ofNamespace
		}
		var pools []string
		if want != "" && json.Unmarshal([]byte(want), &pools) != nil {
			t.Fatalf("annotation %q was accepted", want)
		}
		if diff := cmp.Diff(pools, got.poolsV4); diff != "" {
			t.Errorf("pools (-asked for +given):\n%s", diff)
		}
	})
}
