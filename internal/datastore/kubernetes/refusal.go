package kubernetes

import (
	"strings"

	"github.com/tortie-net/tortie/internal/datastore"
)

// byLock begins, in an answer of the API server, the names of the chart's policies that refuse writes in a locked group,
// and in the one that the cluster does not run on.
const byLock = "ValidatingAdmissionPolicy 'tortie-fence-groups"

// refusal returns the error of a write that admission refuses, by the text of the answer.
func refusal(text string) error {
	if strings.Contains(text, byLock) {
		return datastore.ErrLocked
	}
	return datastore.ErrRefused
}
