// Package app has no code: its folder holds what every program needs: settings from the environment, the choice of the
// node's address, files on the host that are replaced as a whole, a memory limit, the HTTP endpoints, progress in logs,
// the version.
//
// None of its packages makes requests to the API server or changes the kernel.
package app
