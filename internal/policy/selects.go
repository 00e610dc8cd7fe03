package policy

// Selects reports whether pods are selected that include this one. While the labels of its namespace are not known, a
// selector that reads them selects none of it.
func (s *State) Selects(pods *Pods, pod *Pod) bool { return pods.selects(s.directory(), pod, false) }
