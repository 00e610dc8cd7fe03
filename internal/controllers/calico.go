package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// In projectcalico.org/v3 Calico's kube-controllers keep pools and tiers, too. Two controllers would write conditions
// whose texts differ in turn, so ours stand aside. Calico's take no Lease: their Deployment tells whether they run.

const (
	// CalicoControllers is the name of the Deployment of Calico's kube-controllers: in namespace calico-system with Calico's
	// operator, in kube-system without.
	CalicoControllers = "calico-kube-controllers"
	// calicoPatience is how long Calico's kube-controllers are waited for that have no ready pod: those that start, or are
	// replaced.
	calicoPatience = 5 * time.Minute
)

// Deployments is the kind of Calico's cluster-wide programs.
var Deployments = api.Type{Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments", Namespaced: true}

// deployment is the part of a Deployment that tells whether its pods work.
type deployment struct {
	api.Meta `json:"metadata"`
	Spec     struct {
		Replicas *int `json:"replicas"` // absent: 1
	} `json:"spec"`
	Status struct {
		Ready int `json:"readyReplicas"`
	} `json:"status"`
}

// ResourceType implements api.Resource.
func (*deployment) ResourceType() api.Type { return Deployments }

// calicoState is whether Calico's kube-controllers keep pools and tiers.
type calicoState struct {
	by     string    // the Deployments that do, as "NAMESPACE/NAME"; empty: none
	silent time.Time // since when there have been some without a ready pod, and none with one
}

// next returns the state that follows from the Deployments of Calico's kube-controllers at a time. One with a ready pod
// works; one that is to have pods and has no ready one counts as working for calicoPatience.
func (s calicoState) next(all []deployment, now time.Time) calicoState {
	var works, waits []string
	for i := range all {
		d := &all[i]
		switch name := d.Namespace + "/" + d.Name; {
		case d.Status.Ready > 0:
			works = append(works, name)
		case d.Spec.Replicas == nil || *d.Spec.Replicas > 0:
			waits = append(waits, name)
		}
	}
	var n calicoState
	if len(works) == 0 && len(waits) > 0 {
		if n.silent = s.silent; n.silent.IsZero() {
			n.silent = now
		}
		if now.Sub(n.silent) < calicoPatience {
			works = waits
		}
	}
	slices.Sort(works)
	n.by = strings.Join(works, ", ")
	return n
}

// lookAround looks for what Calico runs, or has left behind, in a cluster of projectcalico.org/v3: two requests, and one
// for each Service of Calico's webhooks. In one of crd.projectcalico.org/v1 it makes none,
// and what was said of the other one is taken back.
func (c *Controllers) lookAround(ctx context.Context) error {
	if c.deps.Group.Known() != groups.V3 {
		c.alone.Store(false)
		c.leaveToCalico(calicoState{})
		c.reportWebhooks(nil)
		return nil
	}
	return errors.Join(c.lookForCalico(ctx, time.Now()), c.lookForWebhooks(ctx))
}

// lookForCalico asks, with one request, whether Calico's kube-controllers run, and says in the log when that changes. As
// long as it is not known pools and tiers are left alone. It belongs to the loop of passes.
func (c *Controllers) lookForCalico(ctx context.Context, now time.Time) error {
	var list api.List[deployment, *deployment]
	if err := c.deps.Store.Select(ctx, "", "", "metadata.name="+CalicoControllers, &list); err != nil {
		c.alone.Store(false)
		return fmt.Errorf("look for Calico's kube-controllers: list %s: %w", Deployments.Plural, err)
	}
	c.leaveToCalico(c.calico.next(list.Items, now))
	c.alone.Store(c.calico.by == "")
	return nil
}

// leaveToCalico takes a state for the one that holds, and says so in the log, the metrics and the status.
func (c *Controllers) leaveToCalico(now calicoState) {
	before := c.calico
	c.calico = now
	switch by := now.by; {
	case by != "" && by != before.by:
		c.deps.Log.Info("Calico's kube-controllers run: leaving them the conditions and finalizers of pools and tiers", "deployment", by)
	case by == "" && before.by != "":
		c.deps.Log.Info("leaving the conditions and finalizers of pools and tiers no longer to Calico's kube-controllers",
			"deployment", before.by)
	}
	left := 0.0
	if now.by != "" {
		left = 1
	}
	c.board.metrics.leftToCalico.Set(left)
	c.board.change(func(s *Status) { s.LeftToCalico = now.by })
}
