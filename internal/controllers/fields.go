package controllers

import (
	"context"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/events"
)

// An Event on each configuration names its Calico fields without effect, once, and again when they change.

const (
	reasonNoEffect = "FieldWithoutEffect"
	noEffect       = ": Tortie keeps these fields of Calico's and does not act on them, so they have no effect: remove them, " +
		"unless nodes run Calico"
)

// reviewFields writes Events about fields without effect while this process leads, until ctx ends.
func (c *Controllers) reviewFields(ctx context.Context) {
	r := newReviews(c)
	var changed <-chan struct{}
	if c.deps.Configurations != nil {
		changed = c.deps.Configurations.Changed()
	}
	for {
		all, remarks := fieldEditions(c.configurations())
		for _, v := range r.due(all, time.Now(), 0, r.done) {
			r.done[v.id] = r.report(ctx, &v, remarks[v.id])
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(policyRetry):
		}
	}
}

// configurations returns the configurations of nodes, and the controllers' own.
func (c *Controllers) configurations() (all []api.Keyed) {
	if c.deps.Configurations != nil {
		all = c.deps.Configurations.All()
	}
	if own := c.configuration(); own != nil {
		all = append(all, own)
	}
	return all
}

// fieldEditions returns the objects that have fields without effect, an edition for each set of fields, and their
// remarks.
func fieldEditions(objects []api.Keyed) (all []edition, remarks map[string][]remark) {
	remarks = map[string][]remark{}
	for _, o := range objects {
		if fields := o.StrangeKeys().WithoutEffect(); len(fields) > 0 {
			v := edition{id: o.GetMeta().UID + "/" + strings.Join(fields, ","), about: reference(o, o.GetMeta())}
			all, remarks[v.id] = append(all, v), fieldRemarks(fields)
		}
	}
	return all, remarks
}

// fieldRemarks lists fields, in as many Events as they need.
func fieldRemarks(fields []string) (all []remark) {
	text := ""
	for _, f := range fields {
		if text != "" && len(text)+len(", ")+len(f)+len(noEffect) > events.MaxMessage {
			all, text = append(all, remark{reasonNoEffect, text + noEffect}), ""
		}
		if text != "" {
			text += ", "
		}
		text += f
	}
	return append(all, remark{reasonNoEffect, text + noEffect})
}
