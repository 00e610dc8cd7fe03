// Package events tells operators through Kubernetes Events what they must act on. It owns what may be written how often: a
// caller says the same thing as often as it is so, and never waits. It knows neither the agent nor how the API server is
// reached; internal/cluster has the Poster that writes to a real one.
package events
