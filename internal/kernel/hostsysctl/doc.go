// Package hostsysctl keeps the host's kernel parameters so that it forwards packets between pods and nodes. It writes
// forwarding for the whole host, and nothing else of links that are not the project's own: what stands in the way there
// it reports, with the remedy.
package hostsysctl
