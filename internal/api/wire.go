package api

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Mark is the deletion mark of a BlockAffinity: the text true or false, as crd.projectcalico.org/v1 has it. It is read
// from a boolean, too, as projectcalico.org/v3 has it.
//
// +kubebuilder:validation:Type=string
// +tortie:v3:schema=`{"type":"boolean"}`
type Mark bool

// MarshalJSON writes the text.
func (m Mark) MarshalJSON() ([]byte, error) { return json.Marshal(strconv.FormatBool(bool(m))) }

// UnmarshalJSON reads both forms. Any other value is no mark.
func (m *Mark) UnmarshalJSON(data []byte) error {
	*m = Mark(string(bytes.Trim(data, `"`)) == "true")
	return nil
}

// Foreign is metadata that other programs set, and that this project writes back as it was: the API server takes away
// what an update leaves out. It is nil if an object has none of it. It is never changed.
type Foreign struct {
	Finalizers      []string        `json:"finalizers,omitempty"`
	OwnerReferences json.RawMessage `json:"ownerReferences,omitempty"`
}
