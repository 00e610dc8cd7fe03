package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// maxPassword is what TCP MD5 takes.
const maxPassword = 80

// secretWatch follows the one Secret that the mesh's password is in, for as long as the configuration names it.
type secretWatch struct {
	name string
	of   *shelf[api.Secret]
	by   *follower
	stop context.CancelFunc
}

// meshKey returns where the password of the mesh is; nil if there is none.
func meshKey(c api.BGPConfigurationSpec) *api.SecretKeyRef {
	if c.NodeMeshPassword == nil {
		return nil
	}
	return c.NodeMeshPassword.SecretKeyRef
}

// mindSecrets follows the Secrets that the configuration refers to, and no others.
func (w *Watch) mindSecrets(ctx context.Context) {
	for ctx.Err() == nil {
		w.mindSecret(ctx)
		select {
		case <-ctx.Done():
		case <-w.configured:
		}
	}
}

func (w *Watch) mindSecret(ctx context.Context) {
	name := ""
	if ref := meshKey(w.bgpSpec(api.DefaultName)); ref != nil {
		name = ref.Name
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.secret != nil && w.secret.name == name || w.secret == nil && name == "" {
		return
	}
	if w.secret != nil {
		w.secret.stop()
		w.secret = nil
	}
	if name != "" {
		w.secret = w.followSecret(ctx, name)
	}
	w.worldChanged()
}

func (w *Watch) followSecret(ctx context.Context, name string) *secretWatch {
	s := &secretWatch{name: name, of: newShelf(sameRevision[api.Secret], func(*api.Secret) { w.worldChanged() })}
	var err error
	s.by, err = follow(w, source[api.Secret]{
		name: "Secret " + w.namespace + "/" + name, of: (*api.Secret)(nil).ResourceType(), namespace: w.namespace, object: name,
	}, s.of)
	if err != nil {
		s.by = &follower{err: err}
		s.stop = func() {}
		return s
	}
	s.by.failed = w.worldChanged
	ctx, s.stop = context.WithCancel(ctx)
	go s.by.run(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.of.full: // that there is no Secret is news, too
			w.worldChanged()
		}
	}()
	return s
}

// meshPassword returns the password as far as it is known.
func (w *Watch) meshPassword() Password {
	ref := meshKey(w.bgpSpec(api.DefaultName))
	if ref == nil {
		return Password{}
	}
	w.mu.Lock()
	s := w.secret
	w.mu.Unlock()
	if s == nil || s.name != ref.Name || !s.of.isFull() {
		err := errors.New("not read yet")
		if s != nil && s.name == ref.Name && s.by.failure() != nil {
			err = s.by.failure()
		}
		return Password{Set: true, Err: w.about(ref, err)}
	}
	text, err := password(ref, s.of.get(w.namespace+"/"+ref.Name))
	switch {
	case err != nil:
		return Password{Set: true, Err: w.about(ref, err)}
	case text == "":
		return Password{}
	}
	return Password{Set: true, Text: text}
}

func (w *Watch) about(ref *api.SecretKeyRef, err error) error {
	return fmt.Errorf("key %q of Secret %s/%s: %w", ref.Key, w.namespace, ref.Name, err)
}

// password reads one key of a Secret, nil if that does not exist. No text and no error means that there is to be none.
func password(ref *api.SecretKeyRef, secret *api.Secret) (string, error) {
	optional := ref.Optional != nil && *ref.Optional
	if secret == nil {
		if optional {
			return "", nil
		}
		return "", errors.New("the Secret does not exist: create it, or remove the reference")
	}
	data, ok := secret.Data[ref.Key]
	if !ok {
		if optional {
			return "", nil
		}
		return "", errors.New("the Secret has no such key: add it, or correct the reference")
	}
	// Files that Secrets are made of end with a line break, which nobody means.
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case text == "":
		return "", errors.New("the password is empty: set one, or remove the reference")
	case len(text) > maxPassword:
		return "", fmt.Errorf("the password has %d bytes: TCP MD5 takes %d at most", len(text), maxPassword)
	}
	return text, nil
}
