package inventory

import (
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// Verdict is whether an address is in use.
type Verdict uint8

// The verdicts.
const (
	// Live: it is in use, or may be.
	Live Verdict = iota
	// Dead: its pod is gone, has finished, is on another node or has other addresses.
	Dead
	// Orphaned: it is Dead, and the node that it was assigned on is gone.
	Orphaned
	// Foreign: its user is unknown here. It is never freed.
	Foreign
)

// Unused reports that the address is not in use.
func (v Verdict) Unused() bool { return v == Dead || v == Orphaned }

// Index finds the nodes and pods of a View.
type Index struct {
	nodes map[string]*Node
	pods  map[PodKey]*Pod
	// services has the handles of Services; nil if those are not known.
	services map[string]bool
}

// PodKey names a pod.
type PodKey struct{ Namespace, Name string }

// NewIndex returns an Index of nodes and pods, which must not be changed while it is used.
func NewIndex(nodes []Node, pods []Pod) *Index {
	x := &Index{nodes: make(map[string]*Node, len(nodes)), pods: make(map[PodKey]*Pod, len(pods))}
	for i := range nodes {
		x.nodes[nodes[i].Name] = &nodes[i]
	}
	for i := range pods {
		x.pods[PodKey{pods[i].Namespace, pods[i].Name}] = &pods[i]
	}
	return x
}

// Index returns an Index of the View, which knows its Services, too.
func (v *View) Index() *Index {
	x := NewIndex(v.Nodes, v.Pods)
	if v.Services == nil {
		return x
	}
	x.services = make(map[string]bool, len(v.Services))
	for i := range v.Services {
		if s := &v.Services[i]; s.Type == api.ServiceLoadBalancer {
			x.services[names.ServiceHandle(s.Namespace, s.Name, s.UID)] = true
		}
	}
	return x
}

// Node returns the Node of that name, nil if there is none.
func (x *Index) Node(name string) *Node { return x.nodes[name] }

// Pod returns the pod of that name, nil if there is none.
func (x *Index) Pod(key PodKey) *Pod { return x.pods[key] }

// Judge returns whether an address is in use, and if not, why.
func (x *Index) Judge(a *Allocation) (verdict Verdict, why string) {
	if a.Cooling() {
		return Live, "" // it becomes free by itself
	}
	gone := x.nodes[a.Node] == nil
	switch a.Class {
	case OfPod:
		why = x.pods[PodKey{a.Namespace, a.Pod}].unused(a)
	case OfContainer:
		// Of a container without a pod only the node is known.
		if gone {
			return Orphaned, "its node is gone"
		}
		return Live, ""
	case Tunnel:
		if a.Node != "" && gone {
			return Orphaned, "its node is gone"
		}
		return Live, ""
	case LoadBalancer:
		switch {
		case x.services == nil:
			return Foreign, ""
		case !x.services[a.Handle]:
			return Dead, "there is no such Service of type LoadBalancer"
		}
		return Live, ""
	case Windows:
		return Live, ""
	default:
		return Foreign, ""
	}
	switch {
	case why == "":
		return Live, ""
	case gone:
		return Orphaned, why + ", and so is its node"
	}
	return Dead, why
}

// unused returns why a pod, nil if there is none, does not use an address that was assigned to it; empty if it does or
// may use it.
func (p *Pod) unused(a *Allocation) string {
	switch {
	case p == nil:
		return "its pod is gone"
	case p.Finished:
		return "its pod has finished"
	case p.Node != "" && p.Node != a.Node:
		return "its pod is on node " + p.Node
	case p.HostNetwork:
		return "its pod is in the network of its node"
	case !p.Reported: // it is being started
		return ""
	case a.Further: // the pod's status may not have it
		return ""
	case !p.Uses(a.Address):
		return "its pod has other addresses"
	}
	return ""
}
