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

// The API server calls Calico's webhooks in projectcalico.org/v3 for each write of a policy, or of other kinds. Their
// configuration stays when their pods end, for example when Calico was replaced, and then the API server refuses these
// writes.

const (
	reasonDeadWebhook = "WebhookWithoutEndpoint"
	deadWebhook       = "the API server refuses to write Calico's policies, or others of its objects: it asks webhook %s first " +
		"(failurePolicy Fail), and Service %s/%s has no ready endpoint. If these are to go on, start that Service's pods; else, with " +
		"Calico's operator, delete its APIServer default, and then: kubectl delete %s %s"
	// failClosed is the failurePolicy, and its default, by which the API server refuses writes without the webhook's
	// answer.
	failClosed = "Fail"
)

// webhooks is the part of a ValidatingWebhookConfiguration, or of a mutating one, that lists the webhooks of writes.
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

// rule is the part of a rule that selects the objects of a webhook.
type rule struct{ APIGroups, Resources []string }

// guards reports whether the rule selects a kind of projectcalico.org/v3, or all kinds of all groups.
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

// DeadWebhook is a configuration of webhooks that prevents writes of Calico's objects.
type DeadWebhook struct {
	About api.ObjectReference
	Text  string // the problem and its remedy
}

// DeadWebhooks returns the configurations, of any name, that make the API server call a Service without a ready
// endpoint before it writes a kind of projectcalico.org/v3, and refuse the write without an answer. It makes two
// requests, and one more for each such Service.
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

// lookForWebhooks warns of webhooks that guard Calico's objects and have no endpoint, by an Event and in the status.
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

// reportWebhooks reports the webhooks without an endpoint in the log, the metrics and the status.
func (c *Controllers) reportWebhooks(dead []string) {
	if text := strings.Join(dead, "; "); text != c.deadWebhooks {
		if c.deadWebhooks = text; text != "" {
			c.deps.Log.Warn("Calico's policies cannot be written", "reason", text)
		}
	}
	c.board.metrics.deadWebhooks.Set(float64(len(dead)))
	c.board.change(func(s *Status) { s.DeadWebhooks = dead })
}

// deadWebhookOf returns the problem of a configuration's first webhook without an endpoint; empty if there is none.
// kind is kubectl's name of the configuration's kind.
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

// anyReady reports whether one of the endpoints accepts connections.
func anyReady(all []api.EndpointSlice) bool {
	return slices.ContainsFunc(all, func(s api.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e api.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready })
	})
}
