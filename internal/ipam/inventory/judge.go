package inventory

// Verdict is what is known of an address that somebody holds.
type Verdict uint8

// The verdicts.
const (
	// Live: somebody uses it, or nothing says that nobody does.
	Live Verdict = iota
	// Dead: its pod is gone, has finished, sits on another node or has other addresses.
	Dead
	// Orphaned: it is dead, and so is the node that it was assigned on: nobody is left who could come back to it.
	Orphaned
	// Foreign: it is not for this project to say, and what belongs to a node cannot be cleaned up around it.
	Foreign
)

// Unused reports that nobody uses the address.
func (v Verdict) Unused() bool { return v == Dead || v == Orphaned }

// Index finds what a View knows of an address's holder.
type Index struct {
	nodes map[string]*Node
	pods  map[PodKey]*Pod
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

// Node returns the Node of that name, nil if there is none.
func (x *Index) Node(name string) *Node { return x.nodes[name] }

// Pod returns the pod of that name, nil if there is none.
func (x *Index) Pod(key PodKey) *Pod { return x.pods[key] }

// Judge says whether an address is in use, and why not.
func (x *Index) Judge(a *Allocation) (verdict Verdict, why string) {
	if a.Cooling() {
		return Live, "" // it becomes free by itself
	}
	gone := x.nodes[a.Node] == nil
	switch a.Class {
	case OfPod:
		why = x.pods[PodKey{a.Namespace, a.Pod}].unused(a)
	case OfContainer:
		// Nothing tells of a container that is no pod but the node that it runs on.
		if gone {
			return Orphaned, "its node is gone"
		}
		return Live, ""
	case Tunnel:
		if a.Node != "" && gone {
			return Orphaned, "its node is gone"
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

// unused says why a pod, nil if there is none, does not use an address that was assigned for it; empty if it does, or may.
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
	case !p.Reported: // it is being started, and may be about to say so
		return ""
	case a.Further: // of that only the plugin that made the interface tells, if anybody does
		return ""
	case !p.Uses(a.Address):
		return "its pod has other addresses"
	}
	return ""
}
