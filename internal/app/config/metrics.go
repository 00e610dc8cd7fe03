package config

import (
	"net"
	"strconv"
)

// Metrics are the settings of metrics.
type Metrics struct {
	Addr    string // a second host:port, besides the health address; empty: none
	PerPeer bool   `env:"TORTIE_METRICS_PER_PEER" default:"false" help:"Serve metrics of each BGP peer, not only of BGPPeers; in a mesh they grow with the square of the nodes."`
}

// metricsVariables are the variables for Metrics.Addr. The names are Felix's.
type metricsVariables struct {
	MetricsEnabled bool   `env:"FELIX_PROMETHEUSMETRICSENABLED" default:"false" help:"Serve /metrics on a port of its own too."`
	MetricsHost    string `env:"FELIX_PROMETHEUSMETRICSHOST" default:"" help:"Address of that port; empty means all of the node's."`
	MetricsPort    int    `env:"FELIX_PROMETHEUSMETRICSPORT" default:"9091" is:"1-65535" help:"Its number."`
}

func (m metricsVariables) address() string {
	if !m.MetricsEnabled {
		return ""
	}
	return net.JoinHostPort(m.MetricsHost, strconv.Itoa(m.MetricsPort))
}
