package api

// ObjectReference names an object, such as the one that an Event is about.
type ObjectReference struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name,omitempty"`
	UID        string `json:"uid,omitempty"` // if known: kubectl describe looks for it
}

func (o ObjectReference) String() string { return o.Kind + " " + o.Name }
