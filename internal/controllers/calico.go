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

// In projectcalico.org/v3 Calico's kube-controllers keep pools and tiers, too. Two controllers would overwrite each
// other's condition messages, so this one stands aside. Calico's do not use a Lease: their Deployment shows whether
// they run.

const (
	// CalicoControllers is the name of the Deployment of Calico's kube-controllers: in namespace calico-system with
	// Calico's operator, else in kube-system.
	CalicoControllers = "calico-kube-controllers"
	// calicoPatience is how long Deployments without a ready pod count as working: they are starting, or being replaced.
	calicoPatience = 5 * time.Minute
)

// Trusted reports whether a program in a namespace counts: only namespaces of a cluster's own programs do, where no
// tenant creates any. own is the release's.
func Trusted(namespace, own string) bool {
	return slices.Contains([]string{"kube-system", "calico-system", own}, namespace)
}

// Deployments is the kind of Calico's cluster-wide programs.
var Deployments = api.Type{Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments", Namespaced: true}

// deployment is the part of a Deployment that shows whether its pods work.
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
	by     string    // their Deployments, as "NAMESPACE/NAME"; empty: they do not
	silent time.Time // since when there have been some without a ready pod, and none with one
}

// next returns the state by the Deployments of Calico's kube-controllers at a time. A Deployment with a ready pod
// works; one that has replicas and none ready counts as working for calicoPatience.
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

// lookAround looks for programs and webhooks of Calico's in a cluster of projectcalico.org/v3, with three lists, and a
// request for each Service of Calico's webhooks. In crd.projectcalico.org/v1 it makes none, and withdraws earlier reports.
func (c *Controllers) lookAround(ctx context.Context) error {
	if c.deps.Group.Known() != groups.V3 {
		c.alone.Store(false)
		c.leaveToCalico(calicoState{})
		c.reportWebhooks(nil)
		return nil
	}
	return errors.Join(c.lookForCalico(ctx, time.Now()), c.lookForWebhooks(ctx))
}

// lookForCalico checks with one request whether Calico's kube-controllers run, and logs changes. Until that is known
// pools and tiers are left alone. It belongs to the loop of passes.
func (c *Controllers) lookForCalico(ctx context.Context, now time.Time) error {
	var list api.List[deployment, *deployment]
	if err := c.deps.Store.Select(ctx, "", "", "metadata.name="+CalicoControllers, &list); err != nil {
		c.alone.Store(false)
		return fmt.Errorf("look for Calico's kube-controllers: list %s: %w", Deployments.Plural, err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(d deployment) bool { return !Trusted(d.Namespace, c.deps.Config.Namespace) })
	c.leaveToCalico(c.calico.next(list.Items, now))
	c.alone.Store(c.calico.by == "")
	return nil
}

// leaveToCalico sets the state, and reports a change in the log, the metrics and the status.
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
