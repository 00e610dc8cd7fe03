package agent

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tortie-net/tortie/internal/agent/flows"
)

// ShowFlows serves flow records to clients on this host, and makes metrics of them. Call it before the agent runs.
func (s *Status) ShowFlows(r *flows.Recorder) {
	s.pages = map[string]http.HandlerFunc{flows.Path: r.Serve}
	s.metrics.addFlows(r)
}

// counters are counters with one name and several label values.
func counters(name, help string, labels []string, values func(set func(float64, ...string))) row {
	return row{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue,
		func(_ *sample, set func(float64, ...string)) { values(set) }}
}

func (m *metrics) addFlows(r *flows.Recorder) {
	m.add(
		counters("tortie_flow_connections_total",
			"With TORTIE_FLOWS, connections of pods of this node that were allowed, and sampled packets that were denied, by the policy "+
				"that decided (kind, namespace, name); without a kind none did. Kind others: policies beyond the first 2000.",
			[]string{"direction", "action", "kind", "namespace", "name"}, func(set func(float64, ...string)) {
				for t, n := range r.Totals() {
					if !t.Staged {
						set(number(n), t.Direction.String(), flows.Action(t.Allow), t.By.Kind, t.By.Namespace, t.By.Name)
					}
				}
			}),
		counters("tortie_flow_staged_total", "Of these, the ones on which a staged policy (kind, namespace, name) would decide: action is the "+
			"verdict now, pending that with all staged policies in force.", []string{"direction", "action", "pending", "kind", "namespace", "name"},
			func(set func(float64, ...string)) {
				for t, n := range r.Totals() {
					if t.Staged {
						set(number(n), t.Direction.String(), flows.Action(t.Allow), flows.Action(t.Pending), t.By.Kind, t.By.Namespace, t.By.Name)
					}
				}
			}),
		counters("tortie_flow_lost_total", "What is missing in flow records: overruns of the kernel's buffer of events, connections that were "+
			"only added up by direction, verdict and protocol (crowded), and records that could not be written to the file (unwritten).",
			[]string{"what"},
			func(set func(float64, ...string)) {
				lost := r.Lost()
				set(number(lost.Overruns), "overruns")
				set(number(lost.Crowded), "crowded")
				set(number(lost.Unwritten), "unwritten")
			}),
	)
}
