package diagnose

import "github.com/tortie-net/tortie/internal/agent/nodestatus"

// What is found is plain data, which is described with the rest that people and programs read of a node.
type (
	// Finding is the answer of one check about one thing.
	Finding = nodestatus.Finding
	// Result is what was found on one node.
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
