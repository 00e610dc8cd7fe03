package cluster

import (
	"encoding/json"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// podTexts are Pods with all that is read of them, and what is not.
func podTexts() []string {
	return []string{
		podText(`,"labels":{"app":"web"},"annotations":{"kubernetes.io/config.mirror":"static","other":"x"}`,
			`"nodeName":"n","containers":[{"name":"c","image":"i","env":[{"name":"A","value":"b"}],"resources":{"requests":{"cpu":"100m"}},
			"ports":[{"name":"http","containerPort":80},{"name":"dns","protocol":"UDP","containerPort":53},{"containerPort":81}]}],
			"initContainers":[{"name":"once","ports":[{"name":"once","containerPort":1}]},
				{"name":"side","restartPolicy":"Always","ports":[{"name":"side","containerPort":65535}]}]`,
			`"phase":"Running","podIP":"10.9.9.9","podIPs":[{"ip":"10.9.9.9"},{"ip":"fd00::99"}]`),
		podText(noted(podIP+`"10.0.0.1/32",`+podIPs+`"10.0.0.1/32,fd00::1/128"`), "", ""),
		podText(`,"deletionTimestamp":"2026-11-23T07:01:00Z"`, `"hostNetwork":true`, `"phase":"Failed"`),
		podText(noted(`"k8s.io/initial-events-end":"true"`), "", ""),
	}
}

// protobufOf encodes a Pod given in JSON; nil if it is none.
func protobufOf(t testing.TB, text string) []byte {
	var p corev1.Pod
	if json.Unmarshal([]byte(text), &p) != nil {
		return nil
	}
	data, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A Pod in protobuf is what it is in JSON.
func FuzzPodEncodings(f *testing.F) {
	for _, text := range podTexts() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		data := protobufOf(t, text)
		if data == nil {
			return
		}
		var byJSON, byProtobuf object[policyPod]
		if err := byJSON.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := byProtobuf.Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(byJSON, byProtobuf) {
			t.Errorf("%s:\n%+v\n%+v", text, byJSON, byProtobuf)
		}
	})
}

// What no API server sends is an error, not the end of the process, and lists have what the type of Kubernetes has.
func FuzzListInProtobuf(f *testing.F) {
	list := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}}
	for _, text := range podTexts() {
		var p corev1.Pod
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			f.Fatal(err)
		}
		list.Items = append(list.Items, p)
	}
	data, err := list.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)-1])
	f.Add([]byte{0x0a})
	f.Add([]byte{0x08, 1})
	f.Add([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, data []byte) {
		var got objectList[policyPod]
		var want corev1.PodList
		if err := got.Unmarshal(data); err != nil || want.Unmarshal(data) != nil {
			return
		}
		if !reflect.DeepEqual(got.ListMeta, want.ListMeta) || len(got.Items) != len(want.Items) {
			t.Fatalf("%+v and %d objects, want %+v and %d", got.ListMeta, len(got.Items), want.ListMeta, len(want.Items))
		}
		for i := range want.Items {
			if p := newPolicyPod(&want.Items[i]); !reflect.DeepEqual(got.Items[i].value, p) {
				t.Errorf("%d: %+v, want %+v", i, got.Items[i].value, p)
			}
		}
	})
}

// Kinds that have no protobuf are not decoded from it.
func TestNoProtobuf(t *testing.T) {
	var n object[policyNode]
	if err := n.Unmarshal(nil); err == nil {
		t.Error("a Node was decoded")
	}
}

// A user's annotation makes no bookmark of an object.
func TestBookmarksHaveNoName(t *testing.T) {
	const annotated = `"annotations":{"k8s.io/initial-events-end":"true"}`
	for text, want := range map[string]bool{
		`{"metadata":{"resourceVersion":"7",` + annotated + `}}`:            true,
		`{"metadata":{"resourceVersion":"7"}}`:                              false,
		`{"metadata":{"name":"a","resourceVersion":"7",` + annotated + `}}`: false,
	} {
		var byJSON, byProtobuf object[policyPod]
		errtest.Must(t, byJSON.UnmarshalJSON([]byte(text)))
		errtest.Must(t, byProtobuf.Unmarshal(protobufOf(t, text)))
		if byJSON.ended != want || byProtobuf.ended != want {
			t.Errorf("%s: ends a list: %t in JSON, %t in protobuf, want %t", text, byJSON.ended, byProtobuf.ended, want)
		}
	}
}
