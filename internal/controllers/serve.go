package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/app/serving"
	"github.com/tortie-net/tortie/internal/ipam/gc"
)

// Status is the response of /status.
type Status struct {
	Leading  bool      `json:"leading"`
	Identity string    `json:"identity"`
	Started  time.Time `json:"started"`
	// Synced: everything has been listed once. Known is until when the view is known to be complete.
	Synced bool      `json:"synced"`
	Known  time.Time `json:"known"`
	// LastPass is the time of the last pass, Next the latest time of the next one. Passes counts them.
	LastPass time.Time `json:"lastPass"`
	Next     time.Time `json:"next"`
	Passes   int       `json:"passes"`
	// Locked: ClusterInformation does not allow writes. Nothing is collected.
	Locked bool `json:"locked"`
	// Candidates are addresses in their grace period by node, Waiting all other objects in theirs.
	Candidates map[string]int `json:"candidates,omitempty"`
	Waiting    int            `json:"waiting"`
	// Freed and Removed count since the start.
	Freed   int    `json:"freed"`
	Removed int    `json:"removed"`
	Error   string `json:"error,omitempty"`
	// HostEndpoints lists requests for host endpoints of nodes that are not met.
	HostEndpoints []string `json:"hostEndpoints,omitempty"`
	// FieldsWithoutEffect are the fields of KubeControllersConfiguration default without effect.
	FieldsWithoutEffect []string `json:"fieldsWithoutEffect,omitempty"`
	// LeftToCalico names the Deployments of Calico's kube-controllers that keep the conditions and finalizers of pools and
	// tiers, in projectcalico.org/v3.
	LeftToCalico string `json:"leftToCalico,omitempty"`
	// DeadWebhooks are why policies, or other objects, cannot be written: see the Event WebhookWithoutEndpoint.
	DeadWebhooks []string `json:"deadWebhooks,omitempty"`
	// RouteReflectors are the nodes that the leader has made route reflectors, by name; ReflectorProblem is the obstacle
	// to more.
	RouteReflectors  []string `json:"routeReflectors,omitempty"`
	ReflectorProblem string   `json:"routeReflectorProblem,omitempty"`

	Grace  string `json:"leakGracePeriod"`
	Period string `json:"reconcilerPeriod"`
}

// stuckAfter is how long after its last turn of the board the loop of passes counts as dead: longer than a sweep may take.
const stuckAfter = sweepTime + 10*time.Minute

// board keeps the Status.
type board struct {
	metrics *metrics

	mu     sync.Mutex // guards the rest
	status Status
	turned time.Time // last turn
}

// turn is change by the loop of passes, which alive watches. Other goroutines go on where it is stuck.
func (b *board) turn(f func(*Status)) {
	b.change(func(s *Status) {
		b.turned = time.Now()
		f(s)
	})
}

func (b *board) change(f func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.status)
}

func (b *board) read() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

func (s *Status) did(r *gc.Report) {
	s.Freed += r.Addresses()
	s.Removed += r.Handles + r.Blocks + r.Affinities
}

// alive returns an error if the loop of passes has not turned the board for stuckAfter. An unavailable API server is not a failure.
func (b *board) alive(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.status.Synced || time.Since(b.turned) < stuckAfter {
		return nil
	}
	return fmt.Errorf("nothing has happened since %s", b.turned.Format(time.RFC3339))
}

// ready reports whether the cluster was listed and judged, whether this process leads or not.
func (b *board) ready(context.Context) error {
	s := b.read()
	switch {
	case !s.Synced:
		return errors.New("the first complete list of the cluster has not come yet")
	case s.Passes == 0:
		return errors.New("the first pass has not ended yet")
	}
	return nil
}

func (b *board) handler() http.Handler {
	return serving.Program{Alive: b.alive, Ready: b.ready, Metrics: b.metrics.registry, Status: func() any { return b.read() }}.Handler()
}
