// Package version identifies the build.
package version

import "fmt"

// Version is set by the linker: -X github.com/tortie-net/tortie/internal/app/version.Version=v1.2.3.
var Version = "dev"

// About returns one line that names a program and its version.
func About(program string) string { return fmt.Sprintf("Tortie %s %s", program, Version) }
