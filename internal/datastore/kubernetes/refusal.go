package kubernetes

import (
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/datastore"
)

// ErrLocked means that the chart's policies refuse this write: the API group is locked, or the cluster runs on the other
// one. A later try may succeed. It is datastore.ErrRefused, too.
var ErrLocked = fmt.Errorf("%w: not now", datastore.ErrRefused)

// byLock begins the names of these policies in an answer of the API server.
const byLock = "ValidatingAdmissionPolicy 'tortie-fence-groups"

// refusal returns the error of a write that admission refuses, by the text of the answer.
func refusal(text string) error {
	if strings.Contains(text, byLock) {
		return ErrLocked
	}
	return datastore.ErrRefused
}
