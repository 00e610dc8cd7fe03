// Package faults breaks a real cluster in the ways that clusters break, one at a time, and tests what an operator is
// told: where, in which words, and that nothing else is blamed.
package faults

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }
