package plugin

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/app/wait"
)

// pace bounds a wait that polls.
type pace struct {
	limit       time.Duration // of the whole wait
	first, most time.Duration // between two looks, doubled from one to the next
}

var (
	// gatePace waits as long as Calico does, but polls earlier: most gates open within a second.
	gatePace   = pace{limit: 30 * time.Second, first: 100 * time.Millisecond, most: 5 * time.Second}
	policyPace = pace{first: 2 * time.Millisecond, most: 100 * time.Millisecond}
)

// until polls until look returns nil, or returns its last error at the limit. The error of a poll that the limit cuts
// short gives way to the one before. Pauses vary by half, so that pods of a node that wait for the same thing do not
// poll at once.
func (p pace) until(ctx context.Context, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	var last error
	for pause := p.first; ; pause = min(2*pause, p.most) {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if !wait.Sleep(ctx, pause/2+rand.N(pause/2)) {
			return last
		}
	}
}

// awaitGates waits until every readiness gate is ready.
func awaitGates(ctx context.Context, gates []string, p pace) error {
	if len(gates) == 0 {
		return nil
	}
	client := &http.Client{
		Timeout: 5 * time.Second,
		// As for the kubelet's probes, a self-signed certificate will do: nothing secret is sent, and only a status is read.
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections()
	g, ctx := errgroup.WithContext(ctx)
	for _, gate := range gates {
		g.Go(func() error {
			err := p.until(ctx, func(ctx context.Context) error { return askGate(ctx, client, gate) })
			if err != nil {
				err = failure(types.ErrTryAgainLater,
					fmt.Errorf("readiness_gates of the network configuration: after %v: %w: check what serves it on this node", p.limit, err))
			}
			return err
		})
	}
	return g.Wait()
}

// askGate sends one request to a gate.
func askGate(ctx context.Context, client *http.Client, gate string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gate, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("GET %s: HTTP %d", gate, resp.StatusCode)
	}
	return nil
}
