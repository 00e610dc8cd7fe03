package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// maxPassword is the most bytes of a TCP MD5 key.
const maxPassword = 80

// secretWatch follows a Secret with passwords, for as long as an object refers to it.
type secretWatch struct {
	of   *objectStore[api.Secret]
	by   *follower
	stop context.CancelFunc
}

// meshPlace returns the place of the mesh's password; ok is false if none is configured.
func (w *Watch) meshPlace() (place api.Place, ok bool) {
	return w.bgpSpec(api.DefaultName).NodeMeshPassword.Place()
}

// peerPlaces returns the places of BGPPeers' passwords and keys.
func (w *Watch) peerPlaces() []api.Place {
	var places []api.Place
	for _, p := range w.peers.all(nil) {
		places = append(places, names.Secrets(&p)...)
	}
	return places
}

// watchSecrets follows the Secrets that objects refer to, and no others.
func (w *Watch) watchSecrets(ctx context.Context) {
	for ctx.Err() == nil {
		w.syncSecretWatches(ctx)
		select {
		case <-ctx.Done():
		case <-w.configured:
		}
	}
}

func (w *Watch) syncSecretWatches(ctx context.Context) {
	wanted := map[string]bool{}
	if place, ok := w.meshPlace(); ok {
		wanted[place.Name] = true
	}
	for _, place := range w.peerPlaces() {
		wanted[place.Name] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := false
	for name, s := range w.secrets {
		if !wanted[name] {
			s.stop()
			delete(w.secrets, name)
			changed = true
		}
	}
	for name := range wanted {
		if name != "" && w.secrets[name] == nil {
			w.secrets[name] = w.followSecret(ctx, name)
			changed = true
		}
	}
	if changed {
		w.clusterChanged()
	}
}

func (w *Watch) followSecret(ctx context.Context, name string) *secretWatch {
	s := &secretWatch{of: newObjectStore(sameRevision[api.Secret], func(*api.Secret) { w.clusterChanged() })}
	var err error
	s.by, err = follow(&w.feed, source[api.Secret]{
		name: "Secret " + w.namespace + "/" + name, of: (*api.Secret)(nil).ResourceType(), namespace: w.namespace, object: name,
	}, s.of)
	if err != nil {
		s.by = &follower{err: err}
		s.stop = func() {}
		return s
	}
	s.by.failed = w.clusterChanged
	ctx, s.stop = context.WithCancel(ctx)
	go s.by.run(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.of.full: // the absence of the Secret is a result, too
			w.clusterChanged()
		}
	}()
	return s
}

// meshPassword returns the mesh's password, as far as it is known.
func (w *Watch) meshPassword() state.Password {
	place, ok := w.meshPlace()
	if !ok {
		return state.Password{}
	}
	return w.passwordAt(place)
}

// passwords returns the passwords of BGPPeers, as far as they are known.
func (w *Watch) passwords() map[api.Place]state.Password {
	places := w.peerPlaces()
	if len(places) == 0 {
		return nil
	}
	known := make(map[api.Place]state.Password, len(places))
	for _, place := range places {
		known[place] = w.passwordAt(place)
	}
	return known
}

var errNotRead = errors.New("not read yet")

// passwordAt returns the password at place, as far as it is known.
func (w *Watch) passwordAt(place api.Place) state.Password {
	w.mu.Lock()
	s := w.secrets[place.Name]
	w.mu.Unlock()
	if s == nil || !s.of.isFull() {
		err := errNotRead
		if place.Name == "" {
			err = errors.New("the Secret has no name: set it, or remove the reference")
		}
		if s != nil && s.by.failure() != nil {
			err = s.by.failure()
		}
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("agents may not read it (%w): helm upgrade with --reuse-values --set 'bgp.passwordSecrets={%s}', beside those that "+
				"it has; without Helm add it to resourceNames of Role %s/tortie-node-secrets", err, place.Name, w.namespace)
		}
		return state.Password{Set: true, Err: w.about(place, err), Pending: errors.Is(err, errNotRead)}
	}
	text, err := password(place, s.of.get(w.namespace+"/"+place.Name))
	switch {
	case err != nil:
		return state.Password{Set: true, Err: w.about(place, err)}
	case text == "":
		return state.Password{}
	}
	return state.Password{Set: true, Text: text}
}

func (w *Watch) about(place api.Place, err error) error {
	return fmt.Errorf("key %q of Secret %s/%s: %w", place.Key, w.namespace, place.Name, err)
}

// password reads one key of a Secret; nil is a Secret that does not exist. "" without an error means no password.
func password(place api.Place, secret *api.Secret) (string, error) {
	if secret == nil {
		if place.Optional {
			return "", nil
		}
		return "", errors.New("the Secret does not exist: create it, or remove the reference")
	}
	data, ok := secret.Data[place.Key]
	if !ok {
		if place.Optional {
			return "", nil
		}
		return "", errors.New("the Secret has no such key: add it, or correct the reference")
	}
	// Files that Secrets are made of end with a line break, which is not part of the password.
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case text == "":
		return "", errors.New("the password is empty: set one, or remove the reference")
	case len(text) > maxPassword && !place.TCPAO:
		return "", fmt.Errorf("the password has %d bytes: TCP MD5 takes %d at most", len(text), maxPassword)
	}
	return text, nil
}
