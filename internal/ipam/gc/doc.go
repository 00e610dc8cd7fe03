// Package gc frees what package audit finds unused, once it is older than its grace period: addresses of pods and
// tunnels that are gone, handles that hold nothing, blocks and affinities that no node needs. The reasons are in
// docs/design/gc.md.
//
// Pass is pure: it remembers since when each candidate has been one, and returns those that are due. Sweeper frees
// them. It trusts no view: right before a write it reads the users of what it frees once more, past all caches, and
// each write names the revision that it changes.
package gc
