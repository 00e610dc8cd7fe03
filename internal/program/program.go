// Package program holds the common start and end of every program of the image.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Run runs a program until it returns, prints its error to standard error, and returns the process's exit code: 0, the
// error's ExitCode, or 1. The context ends on SIGINT or SIGTERM. flag.ErrHelp is no error: the flags have been printed.
func Run(name string, run func(ctx context.Context) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	return code(name, run(ctx), os.Stderr)
}

func code(name string, err error, stderr io.Writer) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	var other interface{ ExitCode() int }
	if errors.As(err, &other) {
		return other.ExitCode()
	}
	return 1
}
