package controllers

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/ipam/gc"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// What alerts ask for is served, and explained.
func TestAlertsAskForWhatIsServed(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(labtest.Root(), "charts", "tortie", "files", "alerts.yaml"))
	errtest.Must(t, err)
	errtest.Must(t, yaml.Unmarshal(text, &file))
	page, err := os.ReadFile(filepath.Join(labtest.Root(), "docs", "troubleshooting.md"))
	errtest.Must(t, err)
	served := servedMetrics(t)
	seen := 0
	for _, g := range file.Groups {
		if g.Name != "tortie-controllers" {
			continue
		}
		for _, r := range g.Rules {
			seen++
			if !strings.Contains(string(page), "`"+r.Alert+"`") || r.Annotations["summary"] == "" || r.Annotations["description"] == "" ||
				r.Labels["severity"] == "" {
				t.Errorf("%s is not explained", r.Alert)
			}
			for _, name := range regexp.MustCompile(`\b(?:tortie|ipam)_[a-z_]+`).FindAllString(r.Expr, -1) {
				if !served[name] {
					t.Errorf("%s asks for %s, which is not served", r.Alert, name)
				}
			}
		}
	}
	if seen < 5 {
		t.Errorf("only %d alerts", seen)
	}
}

func servedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	m := newMetrics()
	m.datastore = func() (groups.Group, bool) { return groups.V3, true }
	one := map[share]int{{"p", "n"}: 1}
	m.saw(Usage{Pools: []PoolUsage{{Name: "p"}}, InUse: one, Borrowed: one, Blocks: one, Cooling: one},
		&gc.Decision{Candidates: map[string]int{"n": 1}}, 0, time.Second)
	m.did(&gc.Report{Freed: map[string]int{"n": 1}})
	families, err := m.registry.Gather()
	errtest.Must(t, err)
	served := map[string]bool{}
	for _, f := range families {
		served[f.GetName()] = true
	}
	return served
}
