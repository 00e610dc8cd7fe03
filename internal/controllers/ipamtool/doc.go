// Package ipamtool is what `kube-controllers ipam` does for people: it checks the addresses of a cluster, shows who has them, and
// frees what is kept for nobody.
//
// It works while the cluster runs. It reads, and judges as the controllers do; what it changes it changes through internal/ipam/gc and
// internal/ipam, which look again right before each write and guard it by what was read. Nothing is changed without -yes.
package ipamtool
