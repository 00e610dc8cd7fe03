package policy

// Selects reports whether pods includes this pod. While the labels of its namespace are not known, a selector that
// reads them selects none of the namespace.
func (s *State) Selects(pods *Pods, pod *Pod) bool { return pods.selects(s.directory(), pod, false) }
