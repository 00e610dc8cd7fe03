// Package images writes container image archives for `ctr images import` and `docker load` without a container tool.
// The output is reproducible.
package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// DebugImage is an image with a shell, ping, wget and httpd, for pods that look at the network.
const DebugImage = "docker.io/tortie-net/debug:dev"

// File is an entry of an image: a file's content or the target of a symbolic link.
type File struct {
	Path    string
	Content []byte
	Link    string
}

// Image is one layer with its configuration.
type Image struct {
	// Tag is the full name with registry and tag: containerd does not complete short names.
	Tag        string
	Also       []string // other tags of the same image
	Files      []File
	Entrypoint []string
	Cmd        []string
}

// Program returns the image of one static program.
func Program(tag, program string) (Image, error) {
	b, err := os.ReadFile(program)
	if err != nil {
		return Image{}, fmt.Errorf("read the program of image %s: %w", tag, err)
	}
	name := filepath.Base(program)
	return Image{Tag: tag, Files: []File{{Path: name, Content: b}}, Entrypoint: []string{"/" + name}}, nil
}

// Debug returns DebugImage with the machine's static busybox.
func Debug() (Image, error) {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return Image{}, fmt.Errorf("the debug image needs busybox: apt-get install busybox-static: %w", err)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return Image{}, fmt.Errorf("read busybox: %w", err)
	}
	list, err := exec.Command(program, "--list").Output()
	if err != nil {
		return Image{}, fmt.Errorf("list the applets of %s: %w", program, err)
	}
	files := []File{{Path: "bin/busybox", Content: b}}
	for _, applet := range strings.Fields(string(list)) {
		if applet != "busybox" {
			files = append(files, File{Path: "bin/" + applet, Link: "/bin/busybox"})
		}
	}
	return Image{Tag: DebugImage, Files: files, Cmd: []string{"/bin/sh"}}, nil
}

// agnhostTags are the releases that conformance suites of other projects use: Kubernetes', and network-policy-api's.
// Both use parts that are equal in either.
var agnhostTags = []string{"registry.k8s.io/e2e-test-images/agnhost:2.63.0", "registry.k8s.io/e2e-test-images/agnhost:2.45"}

// Agnhost returns the image of pods of conformance suites, with the program that is its name and a shell.
func Agnhost(program string) (Image, error) {
	image, err := Debug()
	if err != nil {
		return Image{}, err
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return Image{}, fmt.Errorf("read the program of image %s: %w", agnhostTags[0], err)
	}
	image.Tag, image.Also = agnhostTags[0], agnhostTags[1:]
	image.Entrypoint, image.Cmd = []string{"/agnhost"}, []string{"pause"}
	// The suites use bash, but only features of every shell.
	bash := File{Path: "bin/bash", Content: []byte("#!/bin/sh\nexec /bin/sh \"$@\"\n")}
	image.Files = append(image.Files, File{Path: "agnhost", Content: b}, bash)
	return image, nil
}

type imageConfig struct {
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       runConfig `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
}

type runConfig struct {
	Env        []string
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	WorkingDir string
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Write writes the archive to a file atomically.
func (i Image) Write(file string) error {
	layer, err := i.layer()
	if err != nil {
		return fmt.Errorf("write image %s: %w", i.Tag, err)
	}
	config, err := json.Marshal(imageConfig{
		Architecture: runtime.GOARCH, OS: "linux",
		Config: runConfig{Env: []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin"}, Entrypoint: i.Entrypoint, Cmd: i.Cmd, WorkingDir: "/"},
		RootFS: rootFS{Type: "layers", DiffIDs: []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	index, err := json.Marshal([]manifest{{Config: configName, RepoTags: append([]string{i.Tag}, i.Also...), Layers: []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, part := range []File{{Path: configName, Content: config}, {Path: "layer.tar", Content: layer},
		{Path: "manifest.json", Content: index}} {
		if err := put(w, part); err != nil {
			return fmt.Errorf("write image %s: %w", i.Tag, err)
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return replace(file, &archive)
}

func replace(file string, content io.Reader) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := io.Copy(tmp, content); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

func (i Image) layer() ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	dirs := map[string]bool{".": true}
	for _, f := range append([]File{{Path: "tmp/"}}, i.Files...) {
		if err := parents(w, dirs, f.Path); err != nil {
			return nil, err
		}
		if strings.HasSuffix(f.Path, "/") {
			continue
		}
		if err := put(w, f); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// parents writes the missing parent directories of a path.
func parents(w *tar.Writer, dirs map[string]bool, name string) error {
	dir := path.Dir(name)
	if dirs[dir] {
		return nil
	}
	if err := parents(w, dirs, dir); err != nil {
		return err
	}
	dirs[dir] = true
	mode := int64(0o755)
	if dir == "tmp" {
		mode = 0o1777
	}
	return w.WriteHeader(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: mode})
}

func put(w *tar.Writer, f File) error {
	if f.Link != "" {
		return w.WriteHeader(&tar.Header{Name: f.Path, Typeflag: tar.TypeSymlink, Linkname: f.Link, Mode: 0o777})
	}
	if err := w.WriteHeader(&tar.Header{Name: f.Path, Mode: 0o755, Size: int64(len(f.Content))}); err != nil {
		return err
	}
	_, err := w.Write(f.Content)
	return err
}
