package nodestatus

import (
	"errors"
	"flag"
	"fmt"
)

// UsageError is an error in the command line.
type UsageError struct{ err error }

// Error returns the text of the cause.
func (e *UsageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.err }

// ExitCode returns the exit code of the process, 2 as in other commands.
func (e *UsageError) ExitCode() int { return 2 }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// Parse parses flags. Its errors are UsageErrors, except flag.ErrHelp.
func Parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil && !errors.Is(err, flag.ErrHelp) {
		return &UsageError{err}
	} else if err != nil {
		return err
	}
	return nil
}

// NoAgentError means that no agent answers on this machine, so that checks here would mean nothing.
type NoAgentError struct {
	address string
	err     error
}

// Error describes how to ask the right agent.
func (e *NoAgentError) Error() string {
	return fmt.Sprintf("no agent answers on %s: %v: this machine is not judged. Ask the pod of the node that is meant: %s. If an agent "+
		"does run here, its pod may be starting, or it serves on another address (FELIX_HEALTHHOST, FELIX_HEALTHPORT): name that by -address",
		e.address, e.err, Elsewhere("NODE", "COMMAND"))
}

// Unwrap returns the error of the connection.
func (e *NoAgentError) Unwrap() error { return e.err }

// Elsewhere returns the command line that asks a node's own agent.
func Elsewhere(node, command string) string {
	return fmt.Sprintf("kubectl -n kube-system exec -c node $(kubectl -n kube-system get pods -l "+
		"app.kubernetes.io/name=tortie,app.kubernetes.io/component=node --field-selector spec.nodeName=%s -o name) -- node %s", node, command)
}
