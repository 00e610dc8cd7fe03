package diagnose

import "github.com/tortie-net/tortie/internal/agent/nodestatus"

// Findings are defined in package nodestatus with the other output of the node's commands.
type (
	// Finding is the result of one check of one object.
	Finding = nodestatus.Finding
	// Result is all findings on one node.
	Result = nodestatus.Diagnosis
	// Level is how bad a finding is.
	Level = nodestatus.Level
)

// The levels.
const (
	Problem = nodestatus.Problem
	Warning = nodestatus.Warning
	Unknown = nodestatus.Unknown
	OK      = nodestatus.OK
)
