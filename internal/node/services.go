package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kube"
	"github.com/tortie-net/tortie/internal/services"
)

// servicesTime bounds how long a starting agent waits for the first list of services. What it does not announce by the time its
// table has been sent, its peers drop.
const servicesTime = 10 * time.Second

// serviceView is what the agent makes of services: when something has changed, and not in each pass.
type serviceView struct {
	config    services.Config
	excluded  bool
	revision  uint64
	known     bool
	announced []netip.Prefix
	problems  []error
	// remembered is what an earlier agent announced. It counts until services are known.
	remembered []netip.Prefix
	believed   kube.Services
	doubt      doubt // in newer ones
}

// serviceConfig reads what BGPConfiguration says. If something is wrong with it, what was in force stays; at the first time, what
// can be read counts.
func serviceConfig(before services.Config, spec *api.BGPConfigurationSpec, first bool) (services.Config, []error) {
	c, problems := services.Parse(spec)
	for i, err := range problems {
		if !first {
			err = fmt.Errorf("%w; what was announced before stays so", err)
		}
		problems[i] = inBGP(err)
	}
	if len(problems) > 0 && !first {
		return before, problems
	}
	return c, problems
}

// legacyServices adds what the environment says to a World that says nothing.
func (a *Agent) legacyServices(w *kube.World) {
	if len(w.BGP.ServiceClusterIPs) == 0 {
		w.BGP.ServiceClusterIPs = a.Config.Services
	}
}

// excluded reports that this node is kept out of load balancing.
func (s *Snapshot) excluded() bool { return s.Self.Labels[api.LabelExcludeNode] == "true" }

// lookAtServices puts into the snapshot what is to be announced for services. The API server is asked about these only while a
// range is configured.
func (a *Agent) lookAtServices(s *Snapshot) []error {
	a.Watch.FollowServices(s.services.On())
	v, revision := &a.services, a.Watch.ServicesRevision()
	if !v.known || v.doubt.on() || v.revision != revision || v.excluded != s.excluded() || !v.config.Equal(s.services) {
		v.update(time.Now(), s, a.Watch.Services(), revision)
	}
	s.Services, s.servicesKnown = v.announced, v.known
	return v.problems
}

// update takes what is new.
func (v *serviceView) update(at time.Time, s *Snapshot, found kube.Services, revision uint64) {
	now, doubt := v.believe(at, found)
	v.config, v.excluded, v.revision, v.known, v.believed = s.services, s.excluded(), revision, now.Known, now
	in := services.Input{Config: v.config, Excluded: v.excluded}
	if now.Known {
		in.Services, in.Endpoints, v.remembered = now.Services, now.Endpoints, nil
	}
	v.announced = services.Announce(in)
	if v.config.On() && !v.excluded {
		v.announced = slices.Concat(v.announced, v.remembered)
		slices.SortFunc(v.announced, netip.Prefix.Compare)
		v.announced = slices.Compact(v.announced)
	}
	v.problems = problemsOf(doubt)
	if now.Err != nil && !now.Known {
		v.problems = append(v.problems, inSelf("ServicesUnknown", fmt.Errorf("services cannot be read, so that their addresses are not announced one by one: %w", now.Err)))
	}
	for _, p := range now.Problems {
		v.problems = append(v.problems, inObject(p.Kind, api.Meta{Name: p.Name}, cmp.Or(errors.Unwrap(p.Err), p.Err)))
	}
}

// believe returns what is to be gone by: what was found, or for a while what was known before, if most of that is missing at once. An
// API server that comes back with an old or an empty datastore shows that.
func (v *serviceView) believe(at time.Time, found kube.Services) (kube.Services, error) {
	var why error
	if found.Known {
		why = shrunk(count{"Services", len(v.believed.Services), len(found.Services)},
			count{"EndpointSlices", len(v.believed.Endpoints), len(found.Endpoints)})
	}
	if err := v.doubt.about(at, why); err != nil {
		return v.believed, err
	}
	return found, nil
}

// awaitServices lets services be known before the first pass, if they are announced: peers that have kept this node's paths over
// its restart drop what is not announced again at once.
func (a *Agent) awaitServices(ctx context.Context) {
	w := a.Watch.World()
	a.legacyServices(&w)
	c, _ := services.Parse(&w.BGP)
	a.Watch.FollowServices(c.On())
	ctx, cancel := context.WithTimeout(ctx, servicesTime)
	defer cancel()
	a.Watch.AwaitServices(ctx)
}

// PassedServices are the ranges of services inside of which a route reflector passes on what it learns, as it does inside of the
// pools: a service whose endpoints are all on other nodes is announced by them alone.
func (s *Snapshot) PassedServices() []netip.Prefix { return s.services.Passed() }
