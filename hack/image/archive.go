package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// defaultUser is the user of the image. The agent and the installer run as root by their pods' security contexts.
const defaultUser = "65532:65532"

// platformImage is the image of one architecture.
type platformImage struct {
	arch  string
	image v1.Image
}

// about returns the image's labels and annotations.
func about(o options) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":         "tortie",
		"org.opencontainers.image.description":   "Calico-compatible pod network for Kubernetes",
		"org.opencontainers.image.source":        source,
		"org.opencontainers.image.documentation": source + "/tree/main/docs",
		"org.opencontainers.image.licenses":      license,
		"org.opencontainers.image.version":       o.version,
		"org.opencontainers.image.revision":      o.revision,
		"org.opencontainers.image.created":       o.created.UTC().Format(time.RFC3339),
	}
}

const (
	source  = "https://github.com/tortie-net/tortie"
	license = "Apache-2.0"
)

func build(files map[string]file, arch string, o options) (v1.Image, error) {
	content, err := layer(files)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	// Uncompressed: nodes of the lab import the archive faster, and registry clients compress it.
	image, err := mutate.Append(base, mutate.Addendum{
		Layer:   static.NewLayer(content, types.OCIUncompressedLayer),
		History: v1.History{Created: v1.Time{Time: o.created.UTC()}, CreatedBy: "hack/image"},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created = arch, "linux", v1.Time{Time: o.created.UTC()}
	config.Config = v1.Config{
		User:       defaultUser,
		Entrypoint: []string{"/usr/bin/node"},
		Env:        []string{"PATH=/usr/bin:/opt/cni/bin"},
		WorkingDir: "/",
		Labels:     about(o),
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, about(o)).(v1.Image), nil
}

// layer returns a tar of the files and their directories.
func layer(files map[string]file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range paths(files) {
		header := &tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeDir, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		f, isFile := files[name]
		switch {
		case f.hard:
			header.Typeflag, header.Linkname, header.Mode = tar.TypeLink, f.target, int64(files[f.target].mode)
		case f.target != "":
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.target, 0o777
		case isFile:
			header.Typeflag, header.Size, header.Mode = tar.TypeReg, int64(len(f.content)), int64(f.mode)
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

// write packs an OCI layout into a tar, atomically, and returns the digest in a registry: the manifest's, or the
// index's for several architectures.
func write(images []platformImage, o options) (digest v1.Hash, err error) {
	dir, err := os.MkdirTemp(filepath.Dir(o.out), ".image-")
	if err != nil {
		return digest, fmt.Errorf("creating a working directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		return digest, fmt.Errorf("writing OCI layout: %w", err)
	}
	if digest, err = appendTo(p, images, o); err != nil {
		return digest, fmt.Errorf("writing OCI layout: %w", err)
	}
	archive := filepath.Join(dir, "archive")
	if err := pack(string(p), archive); err != nil {
		return digest, fmt.Errorf("packing OCI layout: %w", err)
	}
	if err := os.Rename(archive, o.out); err != nil {
		return digest, fmt.Errorf("putting the archive in place: %w", err)
	}
	return digest, nil
}

func appendTo(p layout.Path, images []platformImage, o options) (v1.Hash, error) {
	_, tag, _ := strings.Cut(path.Base(o.ref), ":")
	// containerd names an imported image by the first; other tools read the second.
	name := layout.WithAnnotations(map[string]string{"io.containerd.image.name": o.ref, "org.opencontainers.image.ref.name": tag})
	platform := func(arch string) v1.Platform { return v1.Platform{OS: "linux", Architecture: arch} }
	if len(images) == 1 {
		only := images[0]
		if err := p.AppendImage(only.image, name, layout.WithPlatform(platform(only.arch))); err != nil {
			return v1.Hash{}, err
		}
		return only.image.Digest()
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		at := platform(i.arch)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.image, Descriptor: v1.Descriptor{Platform: &at}})
	}
	index = mutate.Annotations(index, about(o)).(v1.ImageIndex)
	if err := p.AppendIndex(index, name); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
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
