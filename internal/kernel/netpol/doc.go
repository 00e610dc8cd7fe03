// Package netpol makes the kernel enforce a policy.Ruleset: it turns the Ruleset into chains and sets of the nftables
// table "inet tortie-policy" of one network namespace, which it owns as a whole. It decides nothing: the Ruleset
// determines which packets pass. It never touches another table, links, routes or connection tracking. InForce,
// CloseOther and Hold are for the plugins, which have no Ruleset.
package netpol
