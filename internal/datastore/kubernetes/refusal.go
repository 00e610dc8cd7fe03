package kubernetes

import (
	"regexp"
	"strings"

	"github.com/tortie-net/tortie/internal/datastore"
)

// byLock begins, in an answer of the API server, the names of the chart's policies that refuse writes in a locked
// group, and in the group that the cluster does not run on.
const byLock = "ValidatingAdmissionPolicy 'tortie-fence-groups"

// refusal returns the error of a write that admission refuses, by the text of the answer.
func refusal(text string) error {
	if strings.Contains(text, byLock) {
		return datastore.ErrLocked
	}
	return datastore.ErrRefused
}

// byWebhook matches the API servers' message that a webhook refuses a write, with a status of the webhook's choice
// (Calico's: 405; without one: 400).
var byWebhook = regexp.MustCompile(`admission webhook "[^"]*" denied the request`)

// noWebhook is in the message that a webhook does not answer, with status 500.
const noWebhook = `failed calling webhook "`

// unasked is the error of a write that needs the answer of a webhook that does not answer. Nothing was written, and a
// later try may succeed: it is datastore.ErrRefused, and datastore.ErrUnavailable.
type unasked struct{}

func (unasked) Error() string { return "a webhook does not answer" }

func (unasked) Unwrap() []error { return []error{datastore.ErrRefused, datastore.ErrUnavailable} }
