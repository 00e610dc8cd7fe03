package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testOptions(t *testing.T) options {
	t.Helper()
	dir := t.TempDir()
	for _, name := range slices.Concat([]string{program}, plugins) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("binary "+name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, []byte("certificates"), 0o600); err != nil {
		t.Fatal(err)
	}
	return options{bin: dir, ca: ca, ref: "docker.io/tortie-net/tortie:dev", version: "v1", out: filepath.Join(dir, "out", "tortie.tar")}
}

func untar(t *testing.T, text []byte) (names []string, files map[string][]byte) {
	t.Helper()
	files = map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(text))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, files
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.FileInfo().Mode().String()+" "+h.Name)
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestArchive(t *testing.T) {
	o := testOptions(t)
	if err := run(o); err != nil {
		t.Fatal(err)
	}
	_, archive := untar(t, readFile(t, o.out))
	var index struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
		}
	}
	if err := json.Unmarshal(archive["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index %s: %v", archive["index.json"], err)
	}
	want := map[string]string{"io.containerd.image.name": o.ref, "org.opencontainers.image.ref.name": "dev"}
	if diff := cmp.Diff(want, index.Manifests[0].Annotations); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	blob := func(digest string) []byte { return archive["blobs/"+strings.Replace(digest, ":", "/", 1)] }
	var manifest struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	if err := json.Unmarshal(blob(index.Manifests[0].Digest), &manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatalf("manifest: %v", err)
	}
	if config := string(blob(manifest.Config.Digest)); !strings.Contains(config, `"org.opencontainers.image.version":"v1"`) {
		t.Errorf("config has no version label: %s", config)
	}
	names, files := untar(t, blob(manifest.Layers[0].Digest))
	if diff := cmp.Diff([]string{
		"drwxr-xr-x etc/", "drwxr-xr-x etc/ssl/", "drwxr-xr-x etc/ssl/certs/", "-rw-r--r-- etc/ssl/certs/ca-certificates.crt",
		"drwxr-xr-x opt/", "drwxr-xr-x opt/cni/", "drwxr-xr-x opt/cni/bin/", "-rwxr-xr-x opt/cni/bin/bandwidth",
		"-rwxr-xr-x opt/cni/bin/calico", "-rwxr-xr-x opt/cni/bin/calico-ipam", "-rwxr-xr-x opt/cni/bin/loopback",
		"-rwxr-xr-x opt/cni/bin/portmap",
		"drwxr-xr-x usr/", "drwxr-xr-x usr/bin/", "Lrwxrwxrwx usr/bin/install", "Lrwxrwxrwx usr/bin/node", "-rwxr-xr-x usr/bin/tortie",
	}, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if got := string(files["opt/cni/bin/calico"]); got != "binary calico" {
		t.Errorf("calico is %q", got)
	}
}

func TestSameInputSameBytes(t *testing.T) {
	o := testOptions(t)
	var sums [2][32]byte
	for i := range sums {
		if err := run(o); err != nil {
			t.Fatal(err)
		}
		sums[i] = sha256.Sum256(readFile(t, o.out))
		for _, name := range slices.Concat([]string{program}, plugins) { // times and modes of the input must not matter
			if err := os.Chmod(filepath.Join(o.bin, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	if sums[0] != sums[1] {
		t.Error("two builds differ")
	}
}

func TestMissingInput(t *testing.T) {
	o := testOptions(t)
	o.ca = filepath.Join(o.bin, "no-such-file")
	if err := run(o); err != nil {
		t.Errorf("without CA certificates: %v", err)
	}
	if err := os.Remove(filepath.Join(o.bin, "calico-ipam")); err != nil {
		t.Fatal(err)
	}
	if err := run(o); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("error %v does not say `make build`", err)
	}
}

// No Docker runs here, so what can be compared without it is compared: the files, the entry point and the labels.
func TestDockerfileIsTheSameImage(t *testing.T) {
	text := string(readFile(t, "../../Dockerfile"))
	for _, name := range names {
		if !strings.Contains(text, "ln -s "+program+" /out/usr/bin/"+name+" ") {
			t.Errorf("Dockerfile does not make the link %s", name)
		}
	}
	for _, name := range slices.Concat([]string{program}, plugins) {
		if !strings.Contains(text, "./cmd/"+name) && !strings.Contains(text, "/"+name+" ") && !strings.Contains(text, "/"+name+"\n") {
			t.Errorf("Dockerfile does not build %s", name)
		}
	}
	o := testOptions(t)
	files, err := collect(o)
	if err != nil {
		t.Fatal(err)
	}
	image, err := build(files, o)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range config.Config.Labels {
		want := key + `="` + value + `"`
		switch path.Base(strings.ReplaceAll(key, ".", "/")) {
		case "version":
			want = key + `="${VERSION}"`
		case "revision":
			want = key + `="${REVISION}"`
		}
		if !strings.Contains(text, want) {
			t.Errorf("Dockerfile has not the label %s", want)
		}
	}
	for _, want := range []string{"FROM scratch", `ENTRYPOINT ["` + config.Config.Entrypoint[0] + `"]`, "ENV " + config.Config.Env[0]} {
		if !strings.Contains(text, want) {
			t.Errorf("Dockerfile has not %s", want)
		}
	}
}
