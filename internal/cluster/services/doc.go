// Package services decides which addresses of Kubernetes Services a node announces by BGP, as Calico does. It is pure:
// objects go in, prefixes come out.
package services
