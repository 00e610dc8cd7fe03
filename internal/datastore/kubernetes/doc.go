// Package kubernetes is the datastore in the Kubernetes API: Calico's custom resources, and the few core kinds that the
// CNI plugins read.
//
// It is a REST client of its own on net/http, because two of its processes start for every pod: client-go's typed
// clientset costs 9 ms and 22 MB for each, this one 2 ms and 5 MB. It keeps no cache and starts no goroutine of its
// own.
package kubernetes
