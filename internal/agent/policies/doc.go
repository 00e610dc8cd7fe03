// Package policies keeps a node's network policy in force: it makes a Ruleset from the API server's objects and the
// kernel's routes, has the engine program it, and ends connections that are no longer allowed. It decides when;
// internal/policy decides what is allowed, and internal/kernel/netpol how the kernel's rules look.
//
// It closes early and opens late: what an earlier agent left in the kernel stays in force until everything is known
// that a whole Ruleset needs, and while the API server is away.
package policies
