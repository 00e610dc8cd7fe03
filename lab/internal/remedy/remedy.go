// Package remedy maps messages of other programs to remedies.
package remedy

import (
	"regexp"
	"strings"
)

// Cause is a message about something missing on this machine, with its remedy.
type Cause struct {
	Said   *regexp.Regexp // a whole line
	Remedy string
}

// saidLimit is the length to which the message is cut.
const saidLimit = 300

// Of returns the remedy of the first of causes in the output, with the matching line, or "".
func Of(output string, causes []Cause) string {
	for _, c := range causes {
		if line := strings.TrimSpace(c.Said.FindString(output)); line != "" {
			return c.Remedy + ` ("` + line[:min(len(line), saidLimit)] + `")`
		}
	}
	return ""
}
