// Command image writes Tortie's container image as an OCI archive, without Docker and without a base image, and beside
// it a list of the contents of each architecture's image (SPDX). For two architectures it makes one image with two
// manifests.
//
//	image -bin bin -ref docker.io/tortie-net/tortie:dev -version v0.1.0 -o dist/tortie.tar
//	image -bin amd64=dist/amd64 -bin arm64=dist/arm64 -o dist/tortie-all.tar
//	image -bin bin -tree dist/tree
//
// The same binaries give the same bytes: entries are sorted, no file has a time, and nothing of this machine goes in.
// The Dockerfile takes its files from -tree.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// options are the command's flags.
type options struct {
	programs          programs
	ref, out, tree    string
	root              string
	version, revision string
	created           time.Time
}

// programs is the directories of binaries, by architecture.
type programs []struct{ arch, dir string }

func (p *programs) String() string { return fmt.Sprint(*p) }

// Set takes ARCH=DIR, or a directory of this machine's architecture.
func (p *programs) Set(value string) error {
	arch, dir, ok := strings.Cut(value, "=")
	if !ok {
		arch, dir = runtime.GOARCH, value
	}
	if machines[arch] == 0 {
		return fmt.Errorf("architecture %q: there are amd64 and arm64", arch)
	}
	for _, other := range *p {
		if other.arch == arch {
			return fmt.Errorf("two directories of %s: %s and %s", arch, other.dir, dir)
		}
	}
	*p = append(*p, struct{ arch, dir string }{arch, dir})
	return nil
}

func main() {
	var o options
	flag.Var(&o.programs, "bin", "`[ARCH=]DIR` of the binaries; once for each architecture")
	flag.StringVar(&o.ref, "ref", "docker.io/tortie-net/tortie:dev", "full name of the image, with registry and tag")
	flag.StringVar(&o.root, "root", "..", "root of the repository")
	flag.StringVar(&o.version, "version", "dev", "version label")
	flag.StringVar(&o.revision, "revision", "", "label with the source's commit")
	flag.StringVar(&o.out, "o", "dist/tortie.tar", "archive to write")
	flag.StringVar(&o.tree, "tree", "", "only write the image's files, of the one architecture, into this `directory`")
	flag.Func("created", "`time` of the source's commit, as 2006-01-02T15:04:05Z", func(value string) (err error) {
		o.created, err = time.Parse(time.RFC3339, value)
		return err
	})
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if len(o.programs) == 0 {
		return fmt.Errorf("no binaries: -bin names their directory (make build)")
	}
	if o.tree != "" && len(o.programs) > 1 {
		return fmt.Errorf("-tree %s: it takes the files of one architecture, not of %d", o.tree, len(o.programs))
	}
	var images []platformImage
	for _, p := range o.programs {
		files, err := collect(p.dir, p.arch, o)
		if err != nil {
			return err
		}
		if o.tree != "" {
			return writeTree(files, o.tree)
		}
		image, err := build(files, p.arch, o)
		if err != nil {
			return fmt.Errorf("building the image of %s: %w", p.arch, err)
		}
		images = append(images, platformImage{p.arch, image})
		if err := place(o.beside("."+p.arch+".spdx.json"), files[sbomPath].content); err != nil {
			return err
		}
	}
	digest, err := write(images, o)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s, %s\n", filepath.Base(o.out), o.ref, digest)
	return nil
}

// beside returns the name of a file that accompanies the archive.
func (o options) beside(suffix string) string { return strings.TrimSuffix(o.out, ".tar") + suffix }

// place writes a file atomically.
func place(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("creating the output directory: %w", err)
	}
	if err := os.WriteFile(name+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
