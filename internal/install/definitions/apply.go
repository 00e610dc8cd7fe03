package definitions

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/install/objects"
)

// Read returns the definitions of a directory's *.yaml files, one in each. A file that holds anything else is an error.
func Read(dir fs.FS) ([]*unstructured.Unstructured, error) {
	names, err := fs.Glob(dir, "*.yaml")
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, fmt.Errorf("read definition: %w", err)
		}
		d := &unstructured.Unstructured{}
		text, err = yaml.YAMLToJSON(text)
		if err == nil {
			err = d.UnmarshalJSON(text) // decodes integers like the API server's answers
		}
		if err != nil {
			return nil, fmt.Errorf("read definition %s: %w", name, err)
		}
		if d.GetKind() != "CustomResourceDefinition" || d.GetName() == "" {
			return nil, fmt.Errorf("%s is a %q named %q: it must be a CustomResourceDefinition with a name", name, d.GetKind(), d.GetName())
		}
		all = append(all, d)
	}
	if len(all) == 0 {
		return nil, errors.New("there are no definitions (*.yaml) in the directory: the chart's ConfigMap tortie-definitions is mounted there")
	}
	return all, nil
}

// Applier applies definitions to a cluster.
type Applier struct {
	client dynamic.ResourceInterface
	// tell prints a line.
	tell func(line string)
	// retry is the pause after the first failed attempt.
	retry time.Duration
}

// NewApplier returns an applier for the cluster; it calls tell with a line for each definition that changes, and for
// each wait.
func NewApplier(cfg *rest.Config, tell func(line string)) (*Applier, error) {
	client, err := objects.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Applier{client: client.Resource(objects.Definitions), tell: tell, retry: 250 * time.Millisecond}, nil
}

// Apply applies all definitions, and returns when the API server serves each, or ctx ends. Definitions that are up to
// date are not written. After transient errors, such as a conflict or an API server that does not answer, it tries
// again until ctx ends.
func (a *Applier) Apply(ctx context.Context, all []*unstructured.Unstructured) error {
	kept := 0
	for _, want := range all {
		var action Action
		err := a.untilDone(ctx, "definition "+want.GetName(), func() (err error) {
			action, err = a.applyOne(ctx, want)
			return err
		})
		if err != nil {
			return err
		}
		if action == Keep {
			kept++
			continue
		}
		a.tell(fmt.Sprintf("%s: %s", want.GetName(), action))
	}
	a.tell(fmt.Sprintf("%d of %d definitions were up to date", kept, len(all)))
	for _, want := range all {
		if err := a.untilDone(ctx, "definition "+want.GetName(), func() error { return a.served(ctx, want.GetName()) }); err != nil {
			return err
		}
	}
	return nil
}

func (a *Applier) applyOne(ctx context.Context, want *unstructured.Unstructured) (Action, error) {
	have, err := a.client.Get(ctx, want.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have, err = nil, nil
	}
	if err != nil {
		return "", err
	}
	if have != nil && have.GetDeletionTimestamp() != nil {
		return "", errDeleted
	}
	decision, err := Decide(have, want)
	if err != nil {
		return "", finalError{err}
	}
	switch decision.Action {
	case Create, Replace:
		_, err = a.client.Apply(ctx, want.GetName(), plain(decision.Object), metav1.ApplyOptions{FieldManager: helmsName, Force: true})
	case Extend:
		_, err = a.client.Update(ctx, decision.Object, metav1.UpdateOptions{FieldManager: ownName})
	}
	return decision.Action, err
}

// errDeleted is transient as a rule: the API server deletes the definition after its objects.
var errDeleted = errors.New(
	"it is being deleted, with its objects, and made anew when it is gone: if that takes long, see its finalizers and its objects'")

// Field managers of definitions. Our definitions are written as Helm's: Helm applied them from charts of earlier
// versions, and since version 4 refuses fields that another manager has written.
const (
	helmsName = "helm"
	ownName   = "tortie-hook"
)

// plain returns a definition without the fields that only the API server sets. The resourceVersion stays, so that no
// other change is overwritten.
func plain(definition *unstructured.Unstructured) *unstructured.Unstructured {
	p := definition.DeepCopy()
	p.SetManagedFields(nil)
	p.SetUID("")
	p.SetGeneration(0)
	unstructured.RemoveNestedField(p.Object, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(p.Object, "status")
	return p
}

// served returns nil once the definition has the condition Established.
func (a *Applier) served(ctx context.Context, name string) error {
	have, err := a.client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(have.Object, "status", "conditions")
	reason := "the API server has not looked at it yet"
	for _, item := range conditions {
		c, _ := item.(map[string]any)
		switch {
		case c["type"] == "Established" && c["status"] == "True":
			return nil
		case c["status"] == "False":
			reason = fmt.Sprintf("%v: %v", c["reason"], c["message"])
		}
	}
	return fmt.Errorf("not served: %s", reason)
}

// finalError is an error that does not pass with time.
type finalError struct{ error }

func final(err error) bool {
	var f finalError
	return errors.As(err, &f) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsUnauthorized(err)
}

const (
	maxRetry = 5 * time.Second
	// quiet is how long a wait may last before a line reports it.
	quiet = 2 * time.Second
)

// untilDone calls f until it succeeds, fails for good, or ctx ends: then the error is f's last. what is the prefix of
// errors and lines.
func (a *Applier) untilDone(ctx context.Context, what string, f func() error) error {
	told := time.Now()
	var why error // of the last try that the end of ctx did not interrupt
	for backoff := (wait.Backoff{First: a.retry, Most: maxRetry}); ; {
		err := f()
		if err == nil {
			return nil
		}
		if final(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if time.Since(told) > quiet {
			a.tell(fmt.Sprintf("%s: trying again: %v", what, err))
			told = time.Now()
		}
		if why == nil || !wait.Over(ctx) {
			why = err
		}
		if !wait.Sleep(ctx, backoff.Next()) {
			return fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), why)
		}
	}
}
