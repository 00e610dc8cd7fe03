package names

import "strings"

const question = "tortie-migrate."

// Question returns the name of the CalicoNodeStatus by which `kube-controllers migrate finish` asks a node's agent.
func Question(node string) string { return question + node }

// AsksOther reports whether a CalicoNodeStatus is, by its name, a Question to another node: then this one need not read
// it.
func AsksOther(name, node string) bool {
	return strings.HasPrefix(name, question) && name != Question(node)
}
