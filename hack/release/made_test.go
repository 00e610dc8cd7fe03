package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/tortie-net/tortie/hack/modules"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// version is one that the sources do not name, so that each file with it has it from the tag.
const version = "v0.99.1"

// repositoryOf makes a repository of these sources, with what is not committed yet and without what git ignores, and
// the version's tag.
func repositoryOf(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "one")
	const root = "../.."
	for name := range strings.SplitSeq(strings.TrimRight(git(t, root, "ls-files", "-z", "-co", "--exclude-standard"), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		errtest.Must(t, err)
		write(t, dir, name, string(text))
	}
	git(t, dir, "init", "-q")
	git(t, dir, "add", "--all", ".")
	git(t, dir, "commit", "-q", "-m", "all")
	git(t, dir, "tag", "-a", version, "-m", version)
	return dir
}

// makeRelease runs make release with more environment variables, and returns the directory of its files.
func makeRelease(t *testing.T, dir string, env ...string) string {
	t.Helper()
	cmd := exec.Command("make", "--no-print-directory", "release", "VERSION="+version)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make release %q: %v\n%s", env, err, out)
	}
	return filepath.Join(dir, "dist", "release", version)
}

// TestRelease makes a release in two directories, whose files are the same. The second is made of the modules that the
// first has downloaded.
func TestRelease(t *testing.T) {
	needtest.More(t, "the lab and the image, built")
	one := repositoryOf(t)
	made := makeRelease(t, one)
	two := filepath.Join(t.TempDir(), "elsewhere", "two")
	git(t, one, "clone", "-q", one, two)
	run := func(command ...string) {
		t.Helper()
		if out, err := output(made, command...); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	run("diff", "-r", made, makeRelease(t, two, "GOPROXY=off"))
	run("sha256sum", "--check", "--strict", "SHA256SUMS")
	want := []string{"SHA256SUMS", "tortie-0.99.1.tgz", "tortie-v0.99.1-image.tar", "tortie-v0.99.1.cdx.json", "tortie.yaml", "uninstall.yaml"}
	if got, err := output(made, "ls"); err != nil || got != strings.Join(want, "\n") {
		t.Errorf("files %q, %v, want %q", got, err, want)
	}
	checkVersion(t, made)
	checkModules(t, made)
}

// checkVersion looks for the version in the chart, the manifests and the image.
func checkVersion(t *testing.T, dir string) {
	t.Helper()
	chart := unpack(t, filepath.Join(dir, "tortie-0.99.1.tgz"), "tortie/Chart.yaml")
	for _, line := range []string{"version: 0.99.1", "appVersion: v0.99.1"} {
		if !strings.Contains(chart, line+"\n") {
			t.Errorf("the chart lacks %q:\n%s", line, chart)
		}
	}
	for _, name := range []string{"tortie.yaml", "uninstall.yaml"} {
		images := 0
		f, err := os.Open(filepath.Join(dir, name))
		errtest.Must(t, err)
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if image, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), "image: "); ok {
				if images++; image != repository+":"+version {
					t.Errorf("%s: image %s", name, image)
				}
			}
		}
		if images == 0 {
			t.Errorf("%s has no image", name)
		}
	}
	index := unpack(t, filepath.Join(dir, "tortie-v0.99.1-image.tar"), "index.json")
	if !strings.Contains(index, `"`+repository+":"+version+`"`) {
		t.Errorf("the archive's image has another name: %s", index)
	}
}

// unpack returns a file of a tar or tar.gz.
func unpack(t *testing.T, archive, name string) string {
	t.Helper()
	text, err := os.ReadFile(archive)
	errtest.Must(t, err)
	var from io.Reader = bytes.NewReader(text)
	if strings.HasSuffix(archive, ".tgz") {
		from, err = gzip.NewReader(from)
		errtest.Must(t, err)
	}
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if err != nil {
			t.Fatalf("%s in %s: %v", name, archive, err)
		}
		if header.Name == name {
			content, err := io.ReadAll(r)
			errtest.Must(t, err)
			return string(content)
		}
	}
}

// checkModules holds the list of modules against what Go says of the programs in the image.
func checkModules(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "tortie-v0.99.1.cdx.json"))
	errtest.Must(t, err)
	var list cdx.BOM
	errtest.Must(t, cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&list))
	named, linked := map[string]cdx.Component{}, map[string][]string{}
	for _, c := range *list.Components {
		named[c.BOMRef] = c
	}
	for _, d := range *list.Dependencies {
		for _, ref := range *d.Dependencies {
			linked[d.Ref] = append(linked[d.Ref], named[ref].Name+"@"+named[ref].Version)
		}
	}
	archive := filepath.Join(dir, "tortie-v0.99.1-image.tar")
	for arch, layer := range layers(t, archive) {
		for name := range modules.Programs {
			content := inLayer(t, layer, name)
			info, err := buildinfo.Read(bytes.NewReader(content))
			errtest.Must(t, err)
			have := "\n" + strings.Join(linked["linux/"+arch+"/"+name], "\n") + "\n"
			for _, m := range info.Deps {
				if !strings.Contains(have, "\n"+m.Path+"@"+m.Version+"\n") {
					t.Errorf("%s for %s has the module %s %s, which the list lacks", name, arch, m.Path, m.Version)
				}
			}
			if len(info.Deps) == 0 || !strings.Contains(have, "\nstd@"+info.GoVersion+"\n") || !strings.Contains(have, "\n"+info.Main.Path+"@v") {
				t.Errorf("%s for %s: %d modules; listed are %s", name, arch, len(info.Deps), have)
			}
		}
	}
}

// layers returns the one layer of the image of each architecture.
func layers(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	var index struct{ Manifests []descriptor }
	var manifest struct{ Layers []descriptor }
	read := func(name string, to any) {
		errtest.Must(t, json.Unmarshal([]byte(unpack(t, archive, name)), to))
	}
	blob := func(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }
	read("index.json", &index)
	read(blob(index.Manifests[0].Digest), &index)
	all := map[string][]byte{}
	for _, m := range index.Manifests {
		read(blob(m.Digest), &manifest)
		all[m.Platform.Architecture] = []byte(unpack(t, archive, blob(manifest.Layers[0].Digest)))
	}
	if len(all) != 2 || all["amd64"] == nil || all["arm64"] == nil {
		t.Fatalf("images of %d architectures: %+v", len(all), index)
	}
	return all
}

// inLayer returns a program of the image.
func inLayer(t *testing.T, layer []byte, name string) []byte {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		header, err := r.Next()
		if err != nil {
			t.Fatalf("no program %s in the image: %v", name, err)
		}
		if filepath.Base(header.Name) == name && header.Typeflag == tar.TypeReg && strings.Contains(header.Name, "bin/") {
			content, err := io.ReadAll(r)
			errtest.Must(t, err)
			return content
		}
	}
}
