package desired

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/services"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// ServiceView decides which addresses of services are announced; it decides anew only if something has changed.
type ServiceView struct {
	config    services.Config
	excluded  bool
	revision  uint64
	known     bool
	announced []netip.Prefix
	problems  []error
	// Remembered has the announcements of an earlier agent. They count until services are known.
	Remembered []netip.Prefix
	believed   state.Services
	guard      shrinkGuard // against newer services
}

// serviceConfig reads a BGPConfiguration. If a field is invalid the former configuration stays in force; at the first
// time, the valid fields count.
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

// Excluded reports whether this node is kept out of load balancing.
func (s *Snapshot) Excluded() bool { return s.Self.Labels[api.LabelExcludeNode] == "true" }

// ServicesOn reports whether addresses of services are announced.
func (s *Snapshot) ServicesOn() bool { return s.served.On() }

// Follow puts the announcements for services into a snapshot, and returns problems with them. It calls found if
// services may have changed.
func (v *ServiceView) Follow(now time.Time, s *Snapshot, revision uint64, found func() state.Services) []error {
	if !v.known || v.guard.on() || v.revision != revision || v.excluded != s.Excluded() || !v.config.Equal(s.served) {
		v.update(now, s, found(), revision)
	}
	s.Services, s.ServicesKnown = v.announced, v.known
	return v.problems
}

// update decides anew.
func (v *ServiceView) update(at time.Time, s *Snapshot, found state.Services, revision uint64) {
	now, doubt := v.believe(at, found)
	v.config, v.excluded, v.revision, v.known, v.believed = s.served, s.Excluded(), revision, now.Known, now
	in := services.Input{Config: v.config, Excluded: v.excluded}
	if now.Known {
		in.Services, in.Endpoints, v.Remembered = now.Services, now.Endpoints, nil
	}
	v.announced = services.Announce(in)
	if v.config.On() && !v.excluded {
		v.announced = slices.Concat(v.announced, v.Remembered)
		slices.SortFunc(v.announced, netip.Prefix.Compare)
		v.announced = slices.Compact(v.announced)
	}
	v.problems = ProblemsOf(doubt)
	if now.Err != nil && !now.Known {
		v.problems = append(v.problems,
			InSelf("ServicesUnknown", fmt.Errorf("services cannot be read, so that their addresses are not announced one by one: %w", now.Err)))
	}
	for _, p := range now.Problems {
		v.problems = append(v.problems, InObject(p.Kind, api.Meta{Name: p.Name}, cmp.Or(errors.Unwrap(p.Err), p.Err)))
	}
}

// believe returns the services to use: those found, or for a while the former ones if most are missing at once. An API
// server restored from an old or empty datastore shows that.
func (v *ServiceView) believe(at time.Time, found state.Services) (state.Services, error) {
	var why error
	if found.Known {
		why = shrunk(count{"Services", len(v.believed.Services), len(found.Services)},
			count{"EndpointSlices", len(v.believed.Endpoints), len(found.Endpoints)})
	}
	if err := v.guard.about(at, why); err != nil {
		return v.believed, err
	}
	return found, nil
}

// PassedServices returns the ranges of services in which a route reflector passes on learned paths, as it does in
// pools: a service whose endpoints are all on other nodes is announced by these alone.
func (s *Snapshot) PassedServices() []netip.Prefix { return s.served.Passed() }
