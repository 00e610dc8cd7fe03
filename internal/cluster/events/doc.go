// Package events writes Kubernetes Events about problems that need an operator. It bounds the number of writes: a
// caller reports a condition as often as it holds, and never waits. It knows neither the agent nor the controllers.
package events
