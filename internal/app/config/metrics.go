package config

import (
	"net"
	"strconv"
)

// RawMetrics is the part of the agent's environment that is about metrics, as it is written. The names are Felix's where it has one.
type RawMetrics struct {
	MetricsEnabled string `env:"FELIX_PROMETHEUSMETRICSENABLED" default:"false" help:"Serve /metrics on a port of its own too."`
	MetricsHost    string `env:"FELIX_PROMETHEUSMETRICSHOST" default:"" help:"Address of that port; empty means all of the node's."`
	MetricsPort    string `env:"FELIX_PROMETHEUSMETRICSPORT" default:"9091" help:"Its number."`
	MetricsPerPeer string `env:"TORTIE_METRICS_PER_PEER" default:"false" help:"Serve metrics for each BGP peer, not only those of BGPPeers; in a full mesh they grow with the square of the nodes."`
}

// Metrics is where metrics are served, and which.
type Metrics struct {
	Addr    string // host:port besides that of the health; empty: none
	PerPeer bool
}

func (p *problems) metrics(raw RawMetrics) Metrics {
	m := Metrics{PerPeer: p.boolean("TORTIE_METRICS_PER_PEER", raw.MetricsPerPeer)}
	port := p.integer("FELIX_PROMETHEUSMETRICSPORT", raw.MetricsPort, 1, 65535)
	if p.boolean("FELIX_PROMETHEUSMETRICSENABLED", raw.MetricsEnabled) {
		m.Addr = net.JoinHostPort(raw.MetricsHost, strconv.Itoa(port))
	}
	return m
}
