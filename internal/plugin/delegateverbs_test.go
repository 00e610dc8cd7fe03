package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// Another IPAM plugin answers what only it knows, and its answer is returned.
func TestVerbsOfAnotherIPAMPlugin(t *testing.T) {
	ask := map[string]func(*delegated, context.Context) error{
		"CHECK":  func(d *delegated, ctx context.Context) error { return d.check(ctx) },
		"GC":     func(d *delegated, ctx context.Context) error { return d.gc(ctx) },
		"STATUS": func(d *delegated, ctx context.Context) error { return d.status(ctx) },
	}
	for verb, do := range ask {
		t.Run(verb, func(t *testing.T) {
			// libcni sets the verb, and nothing else, for the plugin that it executes.
			d, verbs := ipamScript(t, `cat >$CNI_PATH/stdin; exit 0`)
			if err := do(d, t.Context()); err != nil {
				t.Error(err)
			}
			if got := verbs(); got != verb {
				t.Errorf("the plugin was executed for %q", got)
			}

			d, _ = ipamScript(t, `echo '{"code":50,"msg":"no leases"}'; exit 1`)
			err := do(d, t.Context())
			var e *types.Error
			if !errors.As(err, &e) || e.Code != 50 || !strings.Contains(err.Error(), "ipam") || !strings.Contains(err.Error(), "no leases") {
				t.Errorf("error %v, want the plugin's", err)
			}

			d, _ = ipamScript(t, `exec sleep 60`)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := do(d, ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a plugin that hangs: %v", err)
			}

			d.conf.IPAM.Type = "none"
			if err := do(d, t.Context()); code(t, err) != types.ErrInvalidNetworkConfig {
				t.Errorf("a plugin that is not there: %v", err)
			}
		})
	}
}
