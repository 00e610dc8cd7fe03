package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Calico's webhooks in projectcalico.org/v3 are asked for each write of a policy. Their configuration stays when their
// pods end, as when Calico has been replaced, and then the API server refuses all of these writes.

const (
	reasonDeadWebhook = "WebhookWithoutEndpoint"
	deadWebhook       = "the API server refuses to write Calico's policies: it asks webhook %s first (failurePolicy Fail), and " +
		"Service %s/%s has no ready endpoint. If Calico is to go on, start that Service's pods; else, with Calico's operator, " +
		"delete its APIServer default, and then: kubectl delete validatingwebhookconfiguration %s"
	// failClosed is the failurePolicy of a webhook without which nothing may be written. It is the API's default.
	failClosed = "Fail"
)

// calicoWebhooks are the names of Calico's configurations: of its operator, and of its manifests.
var calicoWebhooks = []string{"api.projectcalico.org", "calico-webhooks"}

// webhooks is the part of a ValidatingWebhookConfiguration that tells whom the API server asks.
type webhooks struct {
	api.Meta `json:"metadata"`
	Webhooks []struct {
		Name          string
		FailurePolicy string
		ClientConfig  struct {
			Service *struct{ Namespace, Name string } // nil: a URL
		}
	}
}

// ResourceType implements api.Resource.
func (*webhooks) ResourceType() api.Type {
	return api.Type{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration",
		Plural: "validatingwebhookconfigurations"}
}

// lookForWebhooks warns of Calico's webhooks without which no policy can be written and that have no endpoint, by an Event
// and in the status. It makes one request for each configuration that Calico may have, and one more for each Service of
// one that is there.
func (c *Controllers) lookForWebhooks(ctx context.Context) error {
	var dead []string
	var failed []error
	for _, name := range calicoWebhooks {
		of := &webhooks{Meta: api.Meta{Name: name}}
		err := c.deps.Store.Get(ctx, of)
		if errors.Is(err, datastore.ErrNotFound) {
			continue
		}
		text := ""
		if err == nil {
			text, err = c.deadWebhook(ctx, of)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("look for Calico's webhooks: %s: %w", name, err))
		}
		if text != "" {
			dead = append(dead, text)
			c.deps.Events.Warn(reference(of, &of.Meta), reasonDeadWebhook, text)
		}
	}
	c.reportWebhooks(dead)
	return errors.Join(failed...)
}

// reportWebhooks says in the log, the metrics and the status which of Calico's webhooks have no endpoint.
func (c *Controllers) reportWebhooks(dead []string) {
	if text := strings.Join(dead, "; "); text != c.deadWebhooks {
		if c.deadWebhooks = text; text != "" {
			c.deps.Log.Warn("Calico's policies cannot be written", "reason", text)
		}
	}
	c.board.metrics.deadWebhooks.Set(float64(len(dead)))
	c.board.change(func(s *Status) { s.DeadWebhooks = dead })
}

// deadWebhook says what is wrong with the first webhook of a configuration that has no endpoint; empty if none has not.
func (c *Controllers) deadWebhook(ctx context.Context, of *webhooks) (string, error) {
	seen := map[string]bool{} // Services
	for i := range of.Webhooks {
		w := &of.Webhooks[i]
		service := w.ClientConfig.Service
		if service == nil || w.FailurePolicy != failClosed && w.FailurePolicy != "" || seen[service.Namespace+"/"+service.Name] {
			continue
		}
		seen[service.Namespace+"/"+service.Name] = true
		var endpoints api.List[api.EndpointSlice, *api.EndpointSlice]
		if err := c.deps.Store.Select(ctx, service.Namespace, api.LabelServiceName+"="+service.Name, "", &endpoints); err != nil {
			return "", err
		}
		if !anyReady(endpoints.Items) {
			return fmt.Sprintf(deadWebhook, w.Name, service.Namespace, service.Name, of.Name), nil
		}
	}
	return "", nil
}

// anyReady reports whether one of the endpoints takes connections.
func anyReady(all []api.EndpointSlice) bool {
	return slices.ContainsFunc(all, func(s api.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e api.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready })
	})
}
