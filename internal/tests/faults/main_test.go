// Package faults breaks a real cluster in the ways that clusters break, one at a time, and tests the reports to the
// operator: their places and texts, and that they blame nothing else.
package faults

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }
