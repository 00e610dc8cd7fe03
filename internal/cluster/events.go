package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/cluster/events"
)

// maxEventAnswer bounds what is read of an answer.
const maxEventAnswer = 64 << 10

// eventPoster writes Events to an API server. It implements events.Poster.
type eventPoster struct {
	server string
	client *http.Client
	agent  string
}

// OpenEvents returns what writes Events at the API server of cfg, as its user. It makes no request.
func OpenEvents(cfg *rest.Config) (events.Poster, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &eventPoster{server: strings.TrimSuffix(server.String(), "/"), client: client, agent: cfg.UserAgent}, nil
}

// Create implements events.Poster.
func (p *eventPoster) Create(ctx context.Context, e events.Event) error {
	_, err := p.send(ctx, http.MethodPost, p.path(e.Metadata.Namespace, ""), "application/json", e)
	return err
}

// Patch implements events.Poster.
func (p *eventPoster) Patch(ctx context.Context, name events.Metadata, c events.Change) (int, error) {
	answer, err := p.send(ctx, http.MethodPatch, p.path(name.Namespace, name.Name), "application/merge-patch+json", c)
	return answer.Count, err
}

func (p *eventPoster) path(namespace, name string) string {
	path := p.server + "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events"
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	return path
}

func (p *eventPoster) send(ctx context.Context, method, path, contentType string, body any) (answer events.Event, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return answer, fmt.Errorf("event: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader(text))
	if err != nil {
		return answer, fmt.Errorf("event: %w", err)
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", p.agent)
	response, err := p.client.Do(request)
	if err != nil {
		return answer, fmt.Errorf("event: %w", err)
	}
	defer response.Body.Close()
	text, err = io.ReadAll(io.LimitReader(response.Body, maxEventAnswer))
	switch {
	case err != nil:
		return answer, fmt.Errorf("event: read the answer: %w", err)
	case response.StatusCode == http.StatusNotFound && method == http.MethodPatch:
		return answer, events.ErrMissing
	case response.StatusCode == http.StatusConflict && method == http.MethodPost:
		return answer, events.ErrExists
	case response.StatusCode >= http.StatusMultipleChoices:
		return answer, fmt.Errorf("event: the API server answers %s: %s", response.Status, refusal(text))
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("event: read the answer: %w", err)
	}
	return answer, nil
}

// refusal is the message of a Status, or what else the server has said.
func refusal(text []byte) string {
	var status struct{ Message string }
	if json.Unmarshal(text, &status) == nil && status.Message != "" {
		return status.Message
	}
	return strings.TrimSpace(string(text[:min(len(text), 200)]))
}
