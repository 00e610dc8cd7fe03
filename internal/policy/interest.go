package policy

// Interest says whose pods matter to the policies that select local pods.
type Interest struct {
	// All: those of all namespaces; else those of Namespaces.
	All        bool
	Namespaces []string
	// Ports: also the ports that they declare.
	Ports bool
}
