// Package gc frees what package audit finds to be not in use, once it is older than its grace period: addresses of pods
// and tunnels that are gone, handles that hold nothing, blocks and affinities that no node needs. The reasons are in
// docs/design/gc.md.
//
// Pass is pure: it remembers since when each candidate has been one, and returns those that are due. Sweeper carries
// that out. It trusts no view: it asks for what it is about to free once more, past all caches, right before the write,
// and each write names the revision that it changes.
package gc
