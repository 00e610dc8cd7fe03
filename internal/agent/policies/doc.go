// Package policies keeps a node's network policy in force: it turns what the API server and the kernel's routes say
// into a Ruleset, has the engine program it, and ends connections that are not allowed any more. It decides when; what
// is allowed is internal/policy's to say, what the kernel's rules are is internal/kernel/netpol's.
//
// It closes early and opens late: what an earlier agent left in the kernel stays in force until everything is known
// that a whole Ruleset needs, and while the API server is away.
package policies
