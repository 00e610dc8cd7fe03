package api

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Mark is the deletion mark of a BlockAffinity: the text true or false in crd.projectcalico.org/v1, a boolean in
// projectcalico.org/v3. Both forms are read.
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

// Foreign is metadata of other programs, which this project writes back unchanged: the API server removes metadata that
// an update leaves out. It is nil if an object has none. It is never modified.
type Foreign struct {
	Finalizers      []string        `json:"finalizers,omitempty"`
	OwnerReferences json.RawMessage `json:"ownerReferences,omitempty"`
}
