package main

import (
	"bytes"
	"crypto/x509"
	"debug/elf"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The image's programs by directory of binaries. The plugins are in a directory of their own: install copies all of it
// to the host.
var binaries = []string{
	"usr/bin/tortie", "opt/cni/bin/calico", "opt/cni/bin/portmap", "opt/cni/bin/bandwidth", "opt/cni/bin/loopback",
}

// links are other names of programs, which act by argv[0]. The plugins' is a hard link, so that copying the directory
// copies a regular file.
var links = map[string]file{
	"usr/bin/install":          {target: "tortie"},
	"usr/bin/kube-controllers": {target: "tortie"},
	"usr/bin/node":             {target: "tortie"},
	"opt/cni/bin/calico-ipam":  {target: "opt/cni/bin/calico", hard: true},
}

// Paths of other files.
const (
	caPath   = "etc/ssl/certs/ca-certificates.crt"
	sbomPath = "usr/share/sbom/tortie.spdx.json"
	licences = "licenses" // with a directory for each module
)

// machines are the supported architectures.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// file is a file of the image, a link if it has a target: for a hard link, an earlier path of the image.
type file struct {
	content []byte
	mode    fs.FileMode
	target  string
	hard    bool
}

// collect returns the image's files by path.
func collect(dir, arch string, o options) (map[string]file, error) {
	programs := map[string][]byte{}
	for _, name := range binaries {
		from := filepath.Join(dir, path.Base(name))
		content, err := os.ReadFile(from)
		if err != nil {
			return nil, fmt.Errorf("reading binary: %w (run `make build`)", err)
		}
		if err := checkBinary(content, arch); err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		programs[name] = content
	}
	made, err := takeInventory(programs, o)
	if err != nil {
		return nil, fmt.Errorf("listing what the programs are made of: %w", err)
	}
	files := maps.Clone(links)
	for name, content := range programs {
		files[name] = file{content: content, mode: 0o755}
	}
	roots, err := certificates()
	if err != nil {
		return nil, err
	}
	files[caPath] = file{content: roots, mode: 0o644}
	maps.Copy(files, made.licenceFiles())
	sbom, err := makeSBOM(files, made, arch, o)
	if err != nil {
		return nil, err
	}
	files[sbomPath] = file{content: sbom, mode: 0o644}
	return files, nil
}

// checkBinary rejects programs that cannot run in the image, which has neither a dynamic loader nor libraries.
func checkBinary(content []byte, arch string) error {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("not a program: %w", err)
	}
	if f.Machine != machines[arch] {
		return fmt.Errorf("a program for %v in the image of %s", f.Machine, arch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it needs a dynamic loader: build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// certificates returns Mozilla's roots in the release of go.mod, for reproducibility. Constrained roots are left out,
// as a file of certificates cannot express the constraints.
func certificates() ([]byte, error) {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		c, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			return nil, fmt.Errorf("reading CA certificates: %w", err)
		}
		fmt.Fprintf(&out, "# %s\n", c.Subject)
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// paths lists the files and their directories, which end with a slash, each directory before its contents.
func paths(files map[string]file) []string {
	all := slices.Collect(maps.Keys(files))
	for name := range files {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			all = append(all, dir+"/")
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// writeTree writes the files below a new directory.
func writeTree(files map[string]file, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, name := range paths(files) {
		to := filepath.Join(dir, name)
		f, isFile := files[name]
		var err error
		switch {
		case !isFile:
			err = os.MkdirAll(to, 0o755)
		case f.hard:
			err = os.Link(filepath.Join(dir, f.target), to)
		case f.target != "":
			err = os.Symlink(f.target, to)
		default:
			err = os.WriteFile(to, f.content, f.mode)
		}
		if err != nil {
			return fmt.Errorf("writing the image's files: %w", err)
		}
	}
	return nil
}
