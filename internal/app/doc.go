// Package app has no code: its folder holds what every program needs around its work: settings from the environment,
// the choice of the node's address, files on the host that are replaced as a whole, a memory limit, the HTTP endpoints,
// progress in logs, the version.
//
// Strings of the environment come in, checked values go out. Nothing here talks to the API server or changes the
// kernel.
package app
