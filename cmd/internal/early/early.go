// Package early answers -v before the rest of a plugin is initialised, which is most of that answer's cost. Go
// initialises packages in the order of their import paths as far as their imports allow
// (go.dev/ref/spec#Package_initialization): this one imports next to nothing, and is for its side effect only.
package early

import (
	"os"

	"github.com/tortie-net/tortie/internal/app/version"
)

func init() {
	if len(os.Args) != 2 || os.Args[1] != "-v" {
		return
	}
	if _, err := os.Stdout.WriteString(version.About(base(os.Args[0])) + "\n"); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// base returns the last element of a path. Package path/filepath would be initialised after half of the program.
func base(path string) string {
	name := path
	for i := range path {
		if path[i] == '/' {
			name = path[i+1:]
		}
	}
	return name
}
