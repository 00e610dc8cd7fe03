package controllers

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// Calico's webhooks in projectcalico.org/v3 are asked for each write of a policy, others for other kinds. Their
// configuration stays when their pods end, as when Calico has been replaced, and then the API server refuses these writes.

const (
	reasonDeadWebhook = "WebhookWithoutEndpoint"
	deadWebhook       = "the API server refuses to write Calico's policies, or others of its objects: it asks webhook %s first " +
		"(failurePolicy Fail), and Service %s/%s has no ready endpoint. If these are to go on, start that Service's pods; else, with " +
		"Calico's operator, delete its APIServer default, and then: kubectl delete %s %s"
	// failClosed is the failurePolicy of a webhook without which nothing may be written. It is the API's default.
	failClosed = "Fail"
)

// webhooks is the part of a ValidatingWebhookConfiguration, or of a mutating one, that tells who is asked about which writes.
type webhooks struct {
	api.Meta `json:"metadata"`
	Webhooks []struct {
		Name          string
		FailurePolicy string
		Rules         []rule
		ClientConfig  struct {
			Service *struct{ Namespace, Name string } // nil: a URL
		}
	}
}

// rule is the part of a rule that tells which objects a webhook is asked about.
type rule struct{ APIGroups, Resources []string }

// guards reports whether the webhook is asked about a kind of projectcalico.org/v3, or about all kinds of all groups.
func (r rule) guards() bool {
	return slices.Contains(r.APIGroups, path.Dir(string(groups.V3))) ||
		slices.Contains(r.APIGroups, "*") && (slices.Contains(r.Resources, "*") || slices.Contains(r.Resources, "*/*"))
}

// ResourceType implements api.Resource.
func (*webhooks) ResourceType() api.Type {
	return api.Type{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration",
		Plural: "validatingwebhookconfigurations"}
}

// mutating is a MutatingWebhookConfiguration.
type mutating struct{ webhooks }

// ResourceType implements api.Resource.
func (*mutating) ResourceType() api.Type {
	return api.Type{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration",
		Plural: "mutatingwebhookconfigurations"}
}

// DeadWebhook is a configuration of webhooks without which Calico's objects could be written.
type DeadWebhook struct {
	About api.ObjectReference
	Text  string // what is wrong, and the remedy
}

// DeadWebhooks returns the configurations that have the API server ask a Service without a ready endpoint before it writes
// a kind of projectcalico.org/v3, and refuse the write without an answer, whatever their names are. It makes two requests,
// and one more for each Service that such a configuration names.
func DeadWebhooks(ctx context.Context, store *kubernetes.Store) (dead []DeadWebhook, err error) {
	var all api.List[webhooks, *webhooks]
	var changing api.List[mutating, *mutating]
	if err := errors.Join(store.Select(ctx, "", "", "", &all), store.Select(ctx, "", "", "", &changing)); err != nil {
		return nil, fmt.Errorf("look for webhooks: %w", err)
	}
	validates := len(all.Items)
	for i := range changing.Items {
		all.Items = append(all.Items, changing.Items[i].webhooks)
	}
	for i := range all.Items {
		about := reference((*webhooks)(nil), &all.Items[i].Meta)
		if i >= validates {
			about = reference((*mutating)(nil), &all.Items[i].Meta)
		}
		text, err := deadWebhookOf(ctx, store, &all.Items[i], strings.ToLower(about.Kind))
		if err != nil {
			return nil, fmt.Errorf("look for webhooks: %s: %w", about.Name, err)
		}
		if text != "" {
			dead = append(dead, DeadWebhook{about, text})
		}
	}
	return dead, nil
}

// lookForWebhooks warns of webhooks that guard Calico's objects and have no endpoint, by an Event and in
// the status.
func (c *Controllers) lookForWebhooks(ctx context.Context) error {
	dead, err := DeadWebhooks(ctx, c.deps.Store)
	if err != nil {
		return err
	}
	var texts []string
	for i := range dead {
		texts = append(texts, dead[i].Text)
		c.deps.Events.Warn(dead[i].About, reasonDeadWebhook, dead[i].Text)
	}
	c.reportWebhooks(texts)
	return nil
}

// reportWebhooks says in the log, the metrics and the status which webhooks have no endpoint.
func (c *Controllers) reportWebhooks(dead []string) {
	if text := strings.Join(dead, "; "); text != c.deadWebhooks {
		if c.deadWebhooks = text; text != "" {
			c.deps.Log.Warn("Calico's policies cannot be written", "reason", text)
		}
	}
	c.board.metrics.deadWebhooks.Set(float64(len(dead)))
	c.board.change(func(s *Status) { s.DeadWebhooks = dead })
}

// deadWebhookOf says what is wrong with the first webhook of a configuration, of a kind as kubectl names it, that has no
// endpoint; empty if none has not.
func deadWebhookOf(ctx context.Context, store *kubernetes.Store, of *webhooks, kind string) (string, error) {
	seen := map[string]bool{} // Services
	for i := range of.Webhooks {
		w := &of.Webhooks[i]
		service := w.ClientConfig.Service
		if !slices.ContainsFunc(w.Rules, rule.guards) || service == nil ||
			w.FailurePolicy != failClosed && w.FailurePolicy != "" || seen[service.Namespace+"/"+service.Name] {
			continue
		}
		seen[service.Namespace+"/"+service.Name] = true
		var endpoints api.List[api.EndpointSlice, *api.EndpointSlice]
		if err := store.Select(ctx, service.Namespace, api.LabelServiceName+"="+service.Name, "", &endpoints); err != nil {
			return "", err
		}
		if !anyReady(endpoints.Items) {
			return fmt.Sprintf(deadWebhook, w.Name, service.Namespace, service.Name, kind, of.Name), nil
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
