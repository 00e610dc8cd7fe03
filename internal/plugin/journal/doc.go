// Package journal keeps what a DEL could not finish because the datastore was away, so that the container can go at
// once and its address follows later.
//
// It owns one directory of the host, with a file for each handle whose addresses must still be released, written
// atomically and kept through a reboot. A plugin adds an entry; the agent, or any later DEL or GC on the node, finishes
// it; an ADD of the same container takes it back. The package knows no datastore: the caller finishes entries.
//
// There are two kinds of locks, both flock, so that none outlives its holder: one on an entry while a process works on
// it, which may take as long as requests do, and one on the directory for the moment in which a name changes.
package journal
