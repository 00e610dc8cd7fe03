// Package netpol makes the kernel enforce a policy.Ruleset. In goes the Ruleset, out come the chains and sets of the
// nftables table "inet tortie-policy" of one network namespace, which it owns as a whole. It decides nothing: which
// packets pass is the Ruleset's. It never touches another table, links, routes or connection tracking. InForce,
// CloseOther and Hold are for the plugins, which have no Ruleset.
package netpol
