package agent

import (
	"context"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/cluster/services"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// legacyServices takes the cluster IP ranges from the environment if the configuration has none.
func (a *Agent) legacyServices(w *state.Cluster) {
	if len(w.BGP.ServiceClusterIPs) == 0 {
		w.BGP.ServiceClusterIPs = a.Config.Services
	}
}

// readServices puts the announcements for services into the snapshot. Services are watched only while a range is
// configured.
func (a *Agent) readServices(s *desired.Snapshot) []error {
	a.Watch.FollowServices(s.ServicesOn())
	return a.services.Follow(time.Now(), s, a.Watch.ServicesRevision(), a.Watch.Services)
}

// awaitServices waits for the list of services before the first pass, if they are announced: peers that kept this
// node's paths over its restart drop paths that are not announced again at once.
func (a *Agent) awaitServices(ctx context.Context) {
	w := a.Watch.Cluster()
	a.legacyServices(&w)
	c, _ := services.Parse(&w.BGP)
	a.Watch.FollowServices(c.On())
	ctx, cancel := context.WithTimeout(ctx, servicesTime)
	defer cancel()
	defer progress.Say(a.Log, "waiting for the first list of services, whose addresses are to be announced")()
	a.Watch.AwaitServices(ctx)
}

// servicesTime bounds how long a starting agent waits for the first list of services. Peers drop what is not announced
// before the end of its table.
const servicesTime = 10 * time.Second
