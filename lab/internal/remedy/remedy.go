// Package remedy turns what another program has printed into a line that says what helps.
package remedy

import (
	"regexp"
	"strings"
)

// Cause is a line that a program prints when something is missing on this machine, and what helps.
type Cause struct {
	Said   *regexp.Regexp // a whole line
	Remedy string
}

// saidLimit is how much of the program's line is repeated.
const saidLimit = 300

// Of returns the remedy of the first of causes that the output shows, with the line that shows it; "" if it shows none.
func Of(output string, causes []Cause) string {
	for _, c := range causes {
		if line := strings.TrimSpace(c.Said.FindString(output)); line != "" {
			return c.Remedy + ` ("` + line[:min(len(line), saidLimit)] + `")`
		}
	}
	return ""
}
