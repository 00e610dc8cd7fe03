package labtest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// A baseline is the objects of a server before a test, to which the server returns after it.
type baseline struct {
	admin     *rest.Config
	metadata  metadata.Interface
	core      kubernetes.Interface
	resources []metav1.APIResource // that can be listed and deleted, with group and version
	objects   map[string]string    // version by key
}

type metaObject = metav1.PartialObjectMetadata

// newBaseline reads the objects of a server.
func newBaseline(ctx context.Context, admin *rest.Config) (*baseline, error) {
	b := &baseline{admin: admin, objects: map[string]string{}}
	var err error
	if b.metadata, err = metadata.NewForConfig(admin); err != nil {
		return nil, err
	}
	if b.core, err = kubernetes.NewForConfig(admin); err != nil {
		return nil, err
	}
	if b.resources, err = removable(b.core.Discovery()); err != nil {
		return nil, err
	}
	for _, r := range b.resources {
		all, err := b.list(ctx, r, "")
		if err != nil {
			return nil, err
		}
		for _, o := range all {
			b.objects[key(r, o)] = version(r, o)
		}
	}
	return b, nil
}

// removable returns the resources of a server that can be listed and deleted. Events are included once.
func removable(d discovery.DiscoveryInterface) (out []metav1.APIResource, err error) {
	lists, err := d.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("read the server's resources: %w", err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			r.Group, r.Version = gv.Group, gv.Version
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") && gv.Group != "events.k8s.io" {
				out = append(out, r)
			}
		}
	}
	return out, nil
}

func kindOf(r metav1.APIResource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Name}
}

func key(r metav1.APIResource, o metaObject) string {
	return fmt.Sprintf("%s.%s %s", r.Name, r.Group, path.Join(o.Namespace, o.Name))
}

// version returns a text that differs after a change that a test made. A Lease and an APIService change by themselves.
func version(r metav1.APIResource, o metaObject) string {
	switch {
	case r.Name == "leases" || r.Name == "apiservices":
		return string(o.UID)
	case o.Generation > 0: // without changes of the status
		return fmt.Sprint(o.UID, o.Generation)
	default:
		return o.ResourceVersion
	}
}

// stays reports whether an object outside of the baseline is left alone: the API server creates it some time after its
// start, or it is an account of tokens, of whose re-creation the API server would learn too late.
func stays(r metav1.APIResource, o metaObject) bool {
	switch r.Name {
	case "namespaces":
		return o.Name == "default" || strings.HasPrefix(o.Name, "kube-")
	case "serviceaccounts":
		return o.Namespace == chartNamespace
	case "services", "servicecidrs", "endpoints", "endpointslices":
		return o.Name == "kubernetes"
	case "ipaddresses":
		return o.Name == "10.96.0.1"
	case "configmaps":
		return o.Name == "extension-apiserver-authentication" || o.Name == "kube-apiserver-legacy-service-account-token-tracking"
	case "leases":
		return o.Labels["apiserver.kubernetes.io/identity"] != ""
	case "apiservices":
		return o.Labels["kube-aggregator.kubernetes.io/automanaged"] != ""
	default:
		return false
	}
}

// followed reports whether the API server follows a resource in a way of its own, so that it may use an object for some
// time after its deletion.
func followed(r metav1.APIResource) bool {
	return slices.Contains([]string{"admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io"}, r.Group)
}

// restore removes the objects that were created since newBaseline, and returns when the API server's caches and its
// authorizer have followed. It returns an error, and the server may have become another one, if something else was
// changed, or an object of a resource that the API server follows otherwise was created.
func (b *baseline) restore(ctx context.Context) error {
	left, err := b.left(ctx)
	if err != nil {
		return err
	}
	revoked := false
	for _, r := range b.resources {
		if err := b.remove(ctx, r, left[kindOf(r)]); err != nil {
			return err
		}
		revoked = revoked || r.Group == rbacv1.GroupName && len(left[kindOf(r)]) > 0
	}
	if revoked {
		if err := b.awaitRevoked(ctx); err != nil {
			return err
		}
	}
	for _, r := range b.resources {
		if len(left[kindOf(r)]) == 0 {
			continue
		}
		if err := b.awaitGone(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// left returns the objects outside of the baseline.
func (b *baseline) left(ctx context.Context) (map[schema.GroupVersionResource][]metaObject, error) {
	left := map[schema.GroupVersionResource][]metaObject{}
	same := 0
	for _, r := range b.resources {
		all, err := b.list(ctx, r, "")
		if err != nil {
			return nil, err
		}
		for _, o := range all {
			before, known := b.objects[key(r, o)]
			switch {
			case known && before == version(r, o):
				same++
			case known:
				return nil, fmt.Errorf("%s was changed", key(r, o))
			case stays(r, o):
			case followed(r):
				return nil, fmt.Errorf("%s was created", key(r, o))
			default:
				left[kindOf(r)] = append(left[kindOf(r)], o)
			}
		}
	}
	if same < len(b.objects) {
		return nil, fmt.Errorf("%d of the server's own objects were deleted", len(b.objects)-same)
	}
	return left, nil
}

// list returns the objects of a resource, at least as new as resourceVersion: "0" returns those in the API server's
// cache.
func (b *baseline) list(ctx context.Context, r metav1.APIResource, resourceVersion string) ([]metaObject, error) {
	list, err := b.metadata.Resource(kindOf(r)).List(ctx, metav1.ListOptions{ResourceVersion: resourceVersion})
	if err != nil {
		return nil, fmt.Errorf("list %s.%s: %w", r.Name, r.Group, err)
	}
	return list.Items, nil
}

// remove deletes objects without their grace periods and finalizers.
func (b *baseline) remove(ctx context.Context, r metav1.APIResource, objects []metaObject) error {
	now := int64(0)
	for _, o := range objects {
		of := b.metadata.Resource(kindOf(r)).Namespace(o.Namespace)
		err := of.Delete(ctx, o.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err == nil && len(o.Finalizers) > 0 {
			_, err = of.Patch(ctx, o.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		if err == nil && r.Name == "namespaces" {
			err = b.finalize(ctx, o.Name)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", key(r, o), err)
		}
	}
	return nil
}

// finalize removes a namespace in place of the controller manager, which does not run.
func (b *baseline) finalize(ctx context.Context, name string) error {
	ns, err := b.core.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ns.Spec.Finalizers = nil
	_, err = b.core.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	return err
}

// awaitGone waits until the API server's cache of a resource has no objects outside of the baseline.
func (b *baseline) awaitGone(ctx context.Context, r metav1.APIResource) error {
	for {
		all, err := b.list(ctx, r, "0")
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(o metaObject) bool { return b.objects[key(r, o)] == "" && !stays(r, o) })
		if i < 0 {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s is still there: %w", key(r, all[i]), ctx.Err())
		}
	}
}

// awaitRevoked waits until the authorizer has observed every deleted role and binding. It observes the changes of one
// kind in order: once it knows a role and a binding that were created last, it has observed the earlier deletions.
func (b *baseline) awaitRevoked(ctx context.Context) error {
	accounts.Lock()
	defer accounts.Unlock()
	for of := range granted {
		if strings.HasPrefix(of, b.admin.BearerToken) {
			delete(granted, of)
		}
	}
	name := fmt.Sprintf("probe-%d", time.Now().UnixNano())
	for _, r := range []right{probe("ClusterRole", name, ""), probe("Role", name, chartNamespace)} {
		err := errors.Join(apply(ctx, b.admin, r.role, r.binding))
		if err == nil {
			err = r.await(ctx, b.core, name)
		}
		if err != nil {
			return err
		}
		for _, o := range []*unstructured.Unstructured{r.binding, r.role} {
			kind := schema.GroupVersionResource{Group: rbacv1.GroupName, Version: "v1", Resource: resources[o.GetKind()]}
			if err := b.metadata.Resource(kind).Namespace(o.GetNamespace()).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// probe returns a right of an account of that name, which does not exist. kind is the role's.
func probe(kind, name, namespace string) right {
	rule := rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}, ResourceNames: []string{name},
	}
	object := func(kind string, fields map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: fields}
		o.SetAPIVersion(rbacv1.GroupName + "/v1")
		o.SetKind(kind)
		o.SetName(name)
		o.SetNamespace(namespace)
		return o
	}
	return right{
		rule: rule,
		role: object(kind, map[string]any{"rules": []any{map[string]any{
			"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": []any{"get"}, "resourceNames": []any{name},
		}}}),
		binding: object(kind+"Binding", map[string]any{
			"roleRef":  map[string]any{"apiGroup": rbacv1.GroupName, "kind": kind, "name": name},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": name, "namespace": chartNamespace}},
		}),
	}
}
