// Package hostsysctl keeps the host's kernel parameters so that it forwards packets between pods and nodes. It writes
// forwarding for the whole host, and other parameters only of the project's own links: obstacles elsewhere it reports,
// with the remedy.
package hostsysctl
