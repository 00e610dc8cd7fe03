// Package flowtable tests what passes a kernel's flowtable, on kernels that have one, in the virtual machine whose time
// is instructions: it is never too slow for a bound in seconds. Pods, routes, rules and policies are those of the
// plugin and the agent. What policies do to connections over WireGuard, which pass none, has the same bound and is
// here, too: lab vmtest -count -nft.
package flowtable
