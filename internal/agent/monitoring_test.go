package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// Labels and names that Prometheus and Go's library add.
var (
	addedLabels  = []string{"instance", "le"}
	addedMetrics = []string{"process_resident_memory_bytes"}
	suffixes     = regexp.MustCompile(`_(bucket|sum|count)$`)
	metricName   = regexp.MustCompile(`\b(?:tortie|felix|process|go)_[a-z0-9_]+`)
	selectors    = regexp.MustCompile(`([a-z][a-z0-9_]*)\{([^}]*)\}`)
	matcher      = regexp.MustCompile(`^([a-z_]+)(=~|!~|!=|=)"([^"]*)"$`)
	grouping     = regexp.MustCompile(`\b(?:by|on|without|ignoring) ?\(([^)]*)\)`)
	template     = regexp.MustCompile(`\{\{ ?\$?(?:labels\.)?([a-z_]+) ?\}\}`)
)

// monitoringFile reads a file of the chart.
func monitoringFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(labtest.Root(), "charts", "tortie", "files", name))
	errtest.Must(t, err)
	return text
}

// checkQuery fails the test for each fault of a query.
func checkQuery(t *testing.T, where, query string, served map[string]metric) {
	t.Helper()
	for _, fault := range faults(query, served) {
		t.Errorf("%s: %s", where, fault)
	}
}

// faults compares a query with the served metrics: names, labels, and the states of sessions.
func faults(query string, served map[string]metric) (all []string) {
	fault := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	var names []string
	labels := slices.Clone(addedLabels)
	for _, name := range metricName.FindAllString(query, -1) {
		m, ok := served[name]
		if !ok {
			m, ok = served[suffixes.ReplaceAllString(name, "")]
			ok = ok && (m.kind == "histogram" || m.kind == "summary")
		}
		if !ok && !slices.Contains(addedMetrics, name) {
			fault("the agent serves no metric %s", name)
		}
		names, labels = append(names, name), append(labels, m.labels...)
	}
	if len(names) == 0 || strings.Count(query, "(") != strings.Count(query, ")") || strings.Count(query, "{") != strings.Count(query, "}") {
		fault("query %q has no metric, or a bracket too many", query)
	}
	for _, s := range selectors.FindAllStringSubmatch(query, -1) {
		for part := range strings.SplitSeq(s[2], ",") {
			m := matcher.FindStringSubmatch(part)
			if m == nil || !slices.Contains(append(slices.Clone(addedLabels), served[suffixes.ReplaceAllString(s[1], "")].labels...), m[1]) {
				fault("%s has no label for %q", s[1], part)
				continue
			}
			if m[1] == "state" && !slices.Contains(allStates, bgp.State(m[3])) {
				fault("no session is ever %q", m[3])
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			if !slices.Contains(labels, strings.TrimSpace(label)) {
				fault("%v have no label %q", names, label)
			}
		}
	}
	return all
}

// checkTemplate checks the labels that a text uses.
func checkTemplate(t *testing.T, where, text, query string, served map[string]metric) {
	t.Helper()
	labels := append([]string{"value"}, addedLabels...)
	for _, name := range metricName.FindAllString(query, -1) {
		labels = append(labels, served[name].labels...)
	}
	for _, m := range template.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(labels, m[1]) {
			t.Errorf("%s: %q names a label that %q does not have", where, text, query)
		}
	}
}

func TestDashboardAsksForWhatIsServed(t *testing.T) {
	var d struct {
		UID, Title string
		Panels     []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	errtest.Must(t, json.Unmarshal(monitoringFile(t, "dashboard.json"), &d))
	if d.UID == "" || d.Title == "" || len(d.Panels) < 10 {
		t.Fatalf("%+v", d)
	}
	served := registered(t, everything(t))
	places := map[[2]int]string{}
	for i, p := range d.Panels {
		if p.ID != i+1 || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d: %+v", i, p)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := places[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies outside, or on %q", p.Title, other)
				}
				places[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			checkQuery(t, p.Title, target.Expr, served)
			checkTemplate(t, p.Title, target.LegendFormat, target.Expr, served)
		}
	}
}

func TestAlertsAskForWhatIsServed(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	errtest.Must(t, yaml.UnmarshalStrict(monitoringFile(t, "alerts.yaml"), &file))
	page, err := os.ReadFile(filepath.Join(labtest.Root(), "docs", "troubleshooting.md"))
	errtest.Must(t, err)
	served := registered(t, everything(t))
	seen := map[string]bool{}
	for _, g := range file.Groups {
		if g.Name != "tortie" {
			continue // of the controllers: see their own test
		}
		for _, r := range g.Rules {
			if seen[r.Alert] || !strings.HasPrefix(r.Alert, "Tortie") || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) ||
				r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%+v", r)
			}
			seen[r.Alert] = true
			checkQuery(t, r.Alert, r.Expr, served)
			for _, text := range r.Annotations {
				checkTemplate(t, r.Alert, text, r.Expr, served)
			}
			if !strings.Contains(string(page), "`"+r.Alert+"`") {
				t.Errorf("docs/troubleshooting.md does not explain %s", r.Alert)
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d alerts", len(seen))
	}
}

// The check itself finds such faults.
func TestQueriesAreChecked(t *testing.T) {
	served := registered(t, everything(t))
	for query, right := range map[string]bool{
		`sum by (state) (tortie_bgp_peers{state!="Established"})`:                          true,
		`histogram_quantile(0.9, sum by (le) (rate(tortie_node_pass_seconds_bucket[5m])))`: true,
		`tortie_bgp_peer`:                  false,
		`tortie_routes_desired_sum`:        false,
		`tortie_routes_desired{node="x"}`:  false,
		`tortie_bgp_peers{state="Up"}`:     false,
		`sum by (peer) (tortie_bgp_peers)`: false,
		`sum by (state) (tortie_bgp_peers`: false,
		`vector(1)`:                        false,
	} {
		if found := faults(query, served); (len(found) == 0) != right {
			t.Errorf("%s: %q", query, found)
		}
	}
}
