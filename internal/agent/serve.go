package agent

import (
	"context"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/cluster/services"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// legacyServices adds what the environment says to a configuration that has none.
func (a *Agent) legacyServices(w *state.Cluster) {
	if len(w.BGP.ServiceClusterIPs) == 0 {
		w.BGP.ServiceClusterIPs = a.Config.Services
	}
}

// readServices puts into the snapshot what is to be announced for services. The API server is asked about these only
// while a range is configured.
func (a *Agent) readServices(s *desired.Snapshot) []error {
	a.Watch.FollowServices(s.ServicesOn())
	return a.services.Follow(time.Now(), s, a.Watch.ServicesRevision(), a.Watch.Services)
}

// awaitServices lets services be known before the first pass, if they are announced: peers that have kept this node's
// paths over its restart drop what is not announced again at once.
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

// servicesTime bounds how long a starting agent waits for the first list of services. What it does not announce by the
// time its table has been sent, its peers drop.
const servicesTime = 10 * time.Second
