// Program fuzz runs every fuzz target of the repository for some time, in sequence, and prints the check of each
// target. Failing inputs are written below the package's testdata/fuzz, where ordinary test runs repeat them.
package main

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	root := flag.String("root", "..", "the repository")
	each := flag.Duration("time", 20*time.Second, "how long each target runs; 0 lists them")
	only := flag.String("only", "", "run the targets whose names have this in them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *root, *only, *each); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// target is one fuzz target.
type target struct{ dir, name, doc string }

func run(ctx context.Context, root, only string, each time.Duration) error {
	targets, err := find(root)
	if err != nil {
		return err
	}
	var failed []string
	for _, t := range targets {
		if !strings.Contains(t.name, only) {
			continue
		}
		fmt.Printf("%s %s: %s\n", t.dir, t.name, t.doc)
		if each == 0 {
			continue
		}
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), ".")
		cmd.Dir = filepath.Join(root, t.dir)
		out, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Printf("%s", out)
			failed = append(failed, t.dir+" "+t.name)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d targets fail: %s", len(failed), strings.Join(failed, ", "))
	}
	return nil
}

// find returns the targets of all modules below a directory, in order.
func find(root string) (targets []target, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") {
				targets = append(targets, target{dir, f.Name.Name, strings.Join(strings.Fields(f.Doc.Text()), " ")})
			}
		}
		return err
	})
	return targets, err
}
