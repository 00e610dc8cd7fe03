package policyview

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster"
)

// Rights are the remedy of a failed watch, but not of a definition with unknown versions.
func TestUnreadable(t *testing.T) {
	versions := &cluster.VersionError{Of: (*api.ClusterNetworkPolicy)(nil).Types(), Served: []string{"v2"}}
	for _, c := range []struct {
		err    error
		rights bool
	}{{errors.New("forbidden"), true}, {fmt.Errorf("ClusterNetworkPolicy: %w", versions), false}} {
		err := unreadable(c.err)
		if !errors.Is(err, c.err) || strings.Contains(err.Error(), "ClusterRole tortie-node") != c.rights {
			t.Errorf("%v, want rights %v", err, c.rights)
		}
	}
}
