// Command release makes the files of a release from the tag of its version, into dist/release/VERSION:
//
//	release -root .. -version v0.1.0 -helm /path/to/helm -cyclonedx /path/to/cyclonedx-gomod
//
// The files are the image of all architectures as an OCI archive, the chart as a package, the manifests, the list of
// modules (CycloneDX), and SHA256SUMS of all. They are made of the tag's files alone, and have the commit's time: a tag
// and a release of Go always give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// options are the command's flags.
type options struct {
	root, version   string
	helm, cyclonedx string // programs
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", "..", "root of the repository")
	flag.StringVar(&o.version, "version", "", "the release's version, which is a tag of HEAD, such as v0.1.0")
	flag.StringVar(&o.helm, "helm", "helm", "helm program")
	flag.StringVar(&o.cyclonedx, "cyclonedx", "cyclonedx-gomod", "cyclonedx-gomod program")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func run(o options) (err error) {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	c, err := look(root, o.version)
	if err != nil {
		return err
	}
	if err := c.check(o.version); err != nil {
		return err
	}
	all := filepath.Join(root, "dist", "release")
	if err := os.MkdirAll(all, 0o755); err != nil {
		return fmt.Errorf("making the directory of releases: %w", err)
	}
	work, err := os.MkdirTemp(all, ".work-")
	if err != nil {
		return fmt.Errorf("making a working directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	m := maker{options: o, created: c.created, sources: filepath.Join(work, "sources"), out: filepath.Join(work, "out")}
	if err := m.make(root, c.head); err != nil {
		return err
	}
	final := filepath.Join(all, o.version)
	if err := os.RemoveAll(final); err != nil {
		return fmt.Errorf("removing the former files of %s: %w", o.version, err)
	}
	if err := os.Rename(m.out, final); err != nil {
		return fmt.Errorf("putting the files in place: %w", err)
	}
	fmt.Printf("release %s: %s\n", o.version, final)
	return nil
}

// maker makes the files of a release.
type maker struct {
	options
	created time.Time
	sources string // the tag's files
	out     string
}

// repository is the image repository in the chart's default values.
const repository = "ghcr.io/tortie-net/tortie"

func (m maker) make(root, revision string) error {
	for _, dir := range []string{m.sources, m.out} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	archive := m.sources + ".tar"
	if _, err := output(root, "git", "archive", "--format=tar", "-o", archive, revision); err != nil {
		return err
	}
	if _, err := output(root, "tar", "-x", "-f", archive, "-C", m.sources); err != nil {
		return err
	}
	if err := m.setVersion(); err != nil {
		return err
	}
	if err := m.show("make", "--no-print-directory", "-C", m.sources, "image-all", "VERSION="+m.version, "REVISION="+revision,
		"CREATED="+m.created.Format(time.RFC3339), "IMAGE="+repository+":"+m.version); err != nil {
		return err
	}
	// The manifests name the image by the chart's version. The generator is built like the programs, so that common
	// packages are compiled once.
	if err := m.show("env", "CGO_ENABLED=0", "go", "-C", filepath.Join(m.sources, "hack"), "run", "-trimpath", "./generate", "-root", "..",
		"-helm", m.helm); err != nil {
		return err
	}
	if err := m.chart(); err != nil {
		return err
	}
	for name, from := range map[string]string{
		"tortie-" + m.version + "-image.tar": "dist/tortie-all.tar",
		"tortie.yaml":                        "manifests/tortie.yaml",
		"uninstall.yaml":                     "manifests/uninstall.yaml",
	} {
		if err := os.Rename(filepath.Join(m.sources, from), filepath.Join(m.out, name)); err != nil {
			return fmt.Errorf("taking %s: %w", from, err)
		}
	}
	if err := m.components(); err != nil {
		return err
	}
	return writeSums(m.out)
}

// show runs a program with the output of this program.
func (m maker) show(command ...string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return nil
}

// output runs a program in a directory, and returns its standard output. An error contains its standard error.
func output(dir string, command ...string) (string, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
