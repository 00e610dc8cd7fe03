package install

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tortie-net/tortie/internal/app/serving"
)

// Metrics are the installer's metrics.
type Metrics struct {
	registry *prometheus.Registry

	active   prometheus.Gauge
	seconds  prometheus.Gauge
	written  prometheus.Counter
	foreign  prometheus.Gauge
	issued   prometheus.Gauge
	expires  prometheus.Gauge
	renewals *prometheus.CounterVec
	refusals prometheus.Counter
}

// NewMetrics returns the metrics of one installer.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tortie_install_active",
			Help: "1 once everything is on the host, the conflist last."}),
		seconds: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tortie_install_duration_seconds",
			Help: "What the installation took, without the wait for the agent."}),
		written: prometheus.NewCounter(prometheus.CounterOpts{Name: "tortie_install_files_written_total",
			Help: "Files that were written to the host; those that were right already are not among them."}),
		foreign: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tortie_install_foreign_configurations",
			Help: "Configurations of other networks that the runtime prefers to this one, by the order of their names."}),
		issued: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tortie_install_token_issued_timestamp_seconds",
			Help: "When the plugins' token was last renewed and proven; its age is the time since."}),
		expires: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tortie_install_token_expiry_timestamp_seconds",
			Help: "When the plugins' token expires."}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tortie_install_token_renewals_total",
			Help: "Tries to give the plugins a token that works, by how they ended: ok or failed."}, []string{"result"}),
		refusals: prometheus.NewCounter(prometheus.CounterOpts{Name: "tortie_install_token_refusals_total",
			Help: "How often plugins said that the API server did not accept their token."}),
	}
	m.registry.MustRegister(m.active, m.seconds, m.written, m.foreign, m.issued, m.expires, m.renewals, m.refusals)
	for _, result := range []string{resultOK, resultFailed} {
		m.renewals.WithLabelValues(result)
	}
	return m
}

const (
	resultOK     = "ok"
	resultFailed = "failed"
)

func (m *Metrics) renewed(token Token) {
	m.renewals.WithLabelValues(resultOK).Inc()
	m.issued.SetToCurrentTime()
	m.expires.Set(float64(token.Expires.Unix()))
}

// Serve serves the metrics at an address until ctx is done. It fails at once if the address is in use.
func (m *Metrics) Serve(ctx context.Context, addr string, log *slog.Logger) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("serving metrics: %w (TORTIE_INSTALL_METRICS must be a free address of this node)", err)
	}
	go func() {
		if err := serving.Serve(ctx, listener, serving.Metrics(m.registry)); ctx.Err() == nil {
			log.Error("metrics are not served any more", "error", err)
		}
	}()
	return nil
}
