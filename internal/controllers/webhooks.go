package controllers

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
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

// webhooks is the part of a ValidatingWebhookConfiguration that tells who is asked about which writes.
type webhooks struct {
	api.Meta `json:"metadata"`
	Webhooks []struct {
		Name          string
		FailurePolicy string
		Rules         []struct{ APIGroups []string }
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

// DeadWebhook is a ValidatingWebhookConfiguration without which Calico's objects could be written.
type DeadWebhook struct {
	Meta api.Meta
	Text string // what is wrong, and the remedy
}

// DeadWebhooks returns the configurations that have the API server ask a Service without a ready endpoint before it writes
// a kind of projectcalico.org/v3, and refuse the write without an answer, whatever their names are. It makes one request,
// and one more for each Service that such a configuration names.
func DeadWebhooks(ctx context.Context, store *kubernetes.Store) (dead []DeadWebhook, err error) {
	var all api.List[webhooks, *webhooks]
	if err := store.Select(ctx, "", "", "", &all); err != nil {
		return nil, fmt.Errorf("look for Calico's webhooks: %w", err)
	}
	for i := range all.Items {
		text, err := deadWebhookOf(ctx, store, &all.Items[i])
		if err != nil {
			return nil, fmt.Errorf("look for Calico's webhooks: %s: %w", all.Items[i].Name, err)
		}
		if text != "" {
			dead = append(dead, DeadWebhook{all.Items[i].Meta, text})
		}
	}
	return dead, nil
}

// lookForWebhooks warns of webhooks without which no policy can be written and that have no endpoint, by an Event and in
// the status.
func (c *Controllers) lookForWebhooks(ctx context.Context) error {
	dead, err := DeadWebhooks(ctx, c.deps.Store)
	if err != nil {
		return err
	}
	var texts []string
	for i := range dead {
		texts = append(texts, dead[i].Text)
		c.deps.Events.Warn(reference((*webhooks)(nil), &dead[i].Meta), reasonDeadWebhook, dead[i].Text)
	}
	c.reportWebhooks(texts)
	return nil
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

// deadWebhookOf says what is wrong with the first webhook of a configuration that has no endpoint; empty if none has not.
func deadWebhookOf(ctx context.Context, store *kubernetes.Store, of *webhooks) (string, error) {
	seen := map[string]bool{} // Services
	for i := range of.Webhooks {
		w := &of.Webhooks[i]
		service := w.ClientConfig.Service
		asked := slices.ContainsFunc(w.Rules, func(r struct{ APIGroups []string }) bool {
			return slices.Contains(r.APIGroups, path.Dir(string(groups.V3)))
		})
		if !asked || service == nil || w.FailurePolicy != failClosed && w.FailurePolicy != "" || seen[service.Namespace+"/"+service.Name] {
			continue
		}
		seen[service.Namespace+"/"+service.Name] = true
		var endpoints api.List[api.EndpointSlice, *api.EndpointSlice]
		if err := store.Select(ctx, service.Namespace, api.LabelServiceName+"="+service.Name, "", &endpoints); err != nil {
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
