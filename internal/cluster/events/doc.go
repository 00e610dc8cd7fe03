// Package events tells operators through Kubernetes Events what they must act on. It owns what may be written how
// often: a caller reports a condition as often as it holds, and never waits. It knows neither the agent nor the
// controllers.
package events
