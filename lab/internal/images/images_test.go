package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// entries reads a tar archive into memory: the content of files, the target of links.
func entries(t *testing.T, r io.Reader) (map[string]string, []string) {
	t.Helper()
	files, order := map[string]string{}, []string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, order
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeSymlink {
			b = []byte(h.Linkname)
		}
		files[h.Name] = string(b)
		order = append(order, h.Name)
	}
}

// The lab's tests import and run images; this test checks what an importer checks: names, digests, directories before
// their content.
func TestArchive(t *testing.T) {
	image := Image{
		Tag: "docker.io/tortie-net/x:1", Entrypoint: []string{"/a/b"},
		Files: []File{{Path: "a/b", Content: []byte("program")}, {Path: "a/link", Link: "/a/b"}},
	}
	dir := t.TempDir()
	for _, name := range []string{"1.tar", "2.tar"} {
		if err := image.Write(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	first, err := os.ReadFile(filepath.Join(dir, "1.tar"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(filepath.Join(dir, "2.tar"))
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("the same image twice differs (%v)", err)
	}
	files, _ := entries(t, bytes.NewReader(first))
	var m []manifest
	if err := json.Unmarshal([]byte(files["manifest.json"]), &m); err != nil || len(m) != 1 || m[0].RepoTags[0] != image.Tag {
		t.Fatalf("manifest %s, %v", files["manifest.json"], err)
	}
	layer := files[m[0].Layers[0]]
	var config imageConfig
	if err := json.Unmarshal([]byte(files[m[0].Config]), &config); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(layer))); config.RootFS.DiffIDs[0] != want {
		t.Errorf("diff id %s, the layer has %s", config.RootFS.DiffIDs[0], want)
	}
	if config.Config.Entrypoint[0] != "/a/b" {
		t.Errorf("entrypoint %q", config.Config.Entrypoint)
	}
	content, order := entries(t, strings.NewReader(layer))
	if got, want := strings.Join(order, " "), "tmp/ a/ a/b a/link"; got != want {
		t.Errorf("the layer holds %s, want %s", got, want)
	}
	if content["a/b"] != "program" || content["a/link"] != "/a/b" {
		t.Errorf("content %q", content)
	}
}
