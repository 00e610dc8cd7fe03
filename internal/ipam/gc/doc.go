// Package gc frees what nobody uses any more: addresses of pods and tunnels that are gone, handles that hold nothing, blocks and
// affinities that nobody needs. Why that is right is in docs/design/gc.md.
//
// Pass is pure: it remembers what earlier views have shown and decides what must go. Sweeper carries that out. It trusts no view: what
// it frees it has asked for once more, past all caches, right before the write, and each write names the revision that it changes.
package gc
