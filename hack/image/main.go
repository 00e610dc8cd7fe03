// Command image writes Tortie's container image as an OCI archive, without Docker and without a base image.
//
//	image -bin bin -ref docker.io/tortie-net/tortie:dev -version v0.1.0 -o dist/tortie.tar
//
// The same binaries give the same bytes: entries are sorted, and no file has a time. The Dockerfile builds the same image.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The image's files, from the directory of binaries. The plugins lie apart: install copies that whole directory to the host.
var (
	program = "tortie"
	names   = []string{"node", "install"} // that the program is called by: links to it
	plugins = []string{"calico", "calico-ipam", "portmap", "bandwidth", "loopback"}
)

const caPath = "etc/ssl/certs/ca-certificates.crt"

// options are the command's flags.
type options struct {
	bin, ca, ref, version, revision, out string
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of the binaries")
	flag.StringVar(&o.ca, "ca", "/"+caPath, "CA certificates to include; left out if the file does not exist")
	flag.StringVar(&o.ref, "ref", "docker.io/tortie-net/tortie:dev", "full name of the image, with registry and tag")
	flag.StringVar(&o.version, "version", "dev", "version label")
	flag.StringVar(&o.revision, "revision", "", "label with the source's commit")
	flag.StringVar(&o.out, "o", "dist/tortie.tar", "archive to write")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(o options) error {
	files, err := collect(o)
	if err != nil {
		return err
	}
	image, err := build(files, o)
	if err != nil {
		return fmt.Errorf("building image: %w", err)
	}
	return write(image, o.ref, o.out)
}

// file is one of the image, a link if it has a target.
type file struct {
	content []byte
	target  string
}

// collect returns the image's files by their path in it.
func collect(o options) (map[string]file, error) {
	sources := map[string]string{"usr/bin/" + program: filepath.Join(o.bin, program)}
	for _, name := range plugins {
		sources["opt/cni/bin/"+name] = filepath.Join(o.bin, name)
	}
	files := map[string]file{}
	for _, name := range names {
		files["usr/bin/"+name] = file{target: program}
	}
	for dst, src := range sources {
		content, err := os.ReadFile(src)
		if err != nil {
			return nil, fmt.Errorf("reading binary: %w (run `make build`)", err)
		}
		files[dst] = file{content: content}
	}
	ca, err := os.ReadFile(o.ca)
	switch {
	case err == nil:
		files[caPath] = file{content: ca}
	case !errors.Is(err, fs.ErrNotExist): // the agent trusts its cluster's own CA, so the public ones may be absent
		return nil, fmt.Errorf("reading CA certificates: %w", err)
	}
	return files, nil
}

func build(files map[string]file, o options) (v1.Image, error) {
	content, err := layer(files)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	// Uncompressed: nodes of the lab import the archive faster, and a registry's client compresses anyway.
	image, err := mutate.AppendLayers(base, static.NewLayer(content, types.OCIUncompressedLayer))
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/node"},
		Env:        []string{"PATH=/usr/bin:/opt/cni/bin"},
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":       "tortie",
			"org.opencontainers.image.description": "Calico-compatible pod network for Kubernetes",
			"org.opencontainers.image.source":      "https://github.com/tortie-net/tortie",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     o.version,
			"org.opencontainers.image.revision":    o.revision,
		},
	}
	return mutate.ConfigFile(image, config)
}

// layer returns a tar of the files and their directories, in order of path.
func layer(files map[string]file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range entries(files) {
		header := &tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeDir, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		f, isFile := files[name]
		switch {
		case f.target != "":
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.target, 0o777
		case isFile:
			header.Typeflag, header.Size = tar.TypeReg, int64(len(f.content))
		}
		if name == caPath {
			header.Mode = 0o644
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func entries(files map[string]file) []string {
	var names []string
	for name := range files {
		names = append(names, name)
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			names = append(names, dir+"/")
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// write packs an OCI layout with the one image into a tar, which appears under its name when it is complete.
func write(image v1.Image, ref, out string) (err error) {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fmt.Errorf("creating the output directory: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(out), ".image-")
	if err != nil {
		return fmt.Errorf("creating a working directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		return fmt.Errorf("writing OCI layout: %w", err)
	}
	_, tag, _ := strings.Cut(path.Base(ref), ":")
	// containerd names an imported image by the first; other tools read the second.
	names := map[string]string{"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": tag}
	platform := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	if err := p.AppendImage(image, layout.WithAnnotations(names), layout.WithPlatform(platform)); err != nil {
		return fmt.Errorf("writing OCI layout: %w", err)
	}
	archive := filepath.Join(dir, "archive")
	if err := pack(string(p), archive); err != nil {
		return fmt.Errorf("packing OCI layout: %w", err)
	}
	if err := os.Rename(archive, out); err != nil {
		return fmt.Errorf("putting the archive in place: %w", err)
	}
	return nil
}

func pack(dir, archive string) error {
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	return errors.Join(err, w.Close(), f.Close())
}
