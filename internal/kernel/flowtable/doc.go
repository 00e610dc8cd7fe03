// Package flowtable has the kernel pass packets of established connections of pods from device to device, before all
// hooks and without a route lookup. It owns the nftables table "inet tortie-flows". Choose decides which devices take
// part; a Syncer writes that.
//
// Nothing depends on it: a packet of a connection that is not in the flowtable passes routes and rules, as every first
// packet does.
package flowtable
