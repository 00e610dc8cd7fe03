package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// built are directories with a small program for each architecture.
var built = sync.OnceValues(func() (map[string]string, error) {
	dirs := map[string]string{}
	for _, arch := range slices.Sorted(maps.Keys(machines)) {
		dir, err := os.MkdirTemp("", "image-test-")
		if err != nil {
			return nil, err
		}
		dirs[arch] = dir
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "program"), "./testdata/program")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, out)
		}
	}
	return dirs, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	dirs, _ := built()
	for _, dir := range dirs {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// programDir makes a directory of all binaries of an architecture.
func programDir(t *testing.T, arch string) string {
	t.Helper()
	dirs, err := built()
	errtest.Must(t, err)
	dir := t.TempDir()
	for _, name := range binaries {
		errtest.Must(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), readFile(t, filepath.Join(dirs[arch], "program")), 0o700))
	}
	return dir
}

func testOptions(t *testing.T, arches ...string) options {
	t.Helper()
	o := options{
		ref: "docker.io/tortie-net/tortie:dev", root: "../..", version: "v1", revision: "abc",
		out:     filepath.Join(t.TempDir(), "out", "tortie.tar"),
		created: time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC),
	}
	for _, arch := range arches {
		errtest.Must(t, o.programs.Set(arch+"="+programDir(t, arch)))
	}
	return o
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
		errtest.Must(t, err)
		names = append(names, h.FileInfo().Mode().String()+" "+h.Name)
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		if h.Linkname != "" {
			files[h.Name] = []byte(h.Linkname)
		}
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	errtest.Must(t, err)
	return text
}

type descriptor struct {
	MediaType, Digest string
	Annotations       map[string]string
	Platform          struct{ Architecture string }
}

// archive is an OCI archive that has been read.
type archive struct {
	*testing.T
	files map[string][]byte
}

func readArchive(t *testing.T, path string) archive {
	_, files := untar(t, readFile(t, path))
	return archive{t, files}
}

func (a archive) decode(name string, to any) {
	a.Helper()
	if err := json.Unmarshal(a.files[name], to); err != nil {
		a.Fatalf("%s: %v in %s", name, err, a.files[name])
	}
}

func (a archive) manifests(name string) []descriptor {
	a.Helper()
	var index struct{ Manifests []descriptor }
	a.decode(name, &index)
	return index.Manifests
}

func blob(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

// image checks a manifest and its configuration, and returns the layer.
func (a archive) image(d descriptor, o options) (names []string, files map[string][]byte) {
	a.Helper()
	var manifest struct {
		Config      descriptor
		Layers      []descriptor
		Annotations map[string]string
	}
	a.decode(blob(d.Digest), &manifest)
	var config struct {
		Architecture, Created string
		Config                struct {
			User   string
			Labels map[string]string
		}
	}
	a.decode(blob(manifest.Config.Digest), &config)
	for _, said := range []map[string]string{manifest.Annotations, config.Config.Labels} {
		difftest.Want(a, "labels", about(o), said)
	}
	if config.Config.User != "65532:65532" || config.Created != "2026-11-22T04:00:00Z" || config.Architecture != d.Platform.Architecture {
		a.Errorf("configuration %+v of %+v", config, d)
	}
	if len(manifest.Layers) != 1 {
		a.Fatalf("layers %+v", manifest.Layers)
	}
	return untar(a.T, a.files[blob(manifest.Layers[0].Digest)])
}

func TestArchive(t *testing.T) {
	o := testOptions(t, "amd64")
	errtest.Must(t, run(o))
	a := readArchive(t, o.out)
	manifests := a.manifests("index.json")
	if len(manifests) != 1 {
		t.Fatalf("manifests %+v", manifests)
	}
	want := map[string]string{"io.containerd.image.name": o.ref, "org.opencontainers.image.ref.name": "dev"}
	difftest.Want(t, "names", want, manifests[0].Annotations)
	names, files := a.image(manifests[0], o)
	difftest.Want(t, "files", []string{
		"drwxr-xr-x etc/", "drwxr-xr-x etc/ssl/", "drwxr-xr-x etc/ssl/certs/", "-rw-r--r-- etc/ssl/certs/ca-certificates.crt",
		"drwxr-xr-x licenses/", "drwxr-xr-x licenses/github.com/", "drwxr-xr-x licenses/github.com/tortie-net/",
		"drwxr-xr-x licenses/github.com/tortie-net/tortie/", "drwxr-xr-x licenses/github.com/tortie-net/tortie/hack/",
		"-rw-r--r-- licenses/github.com/tortie-net/tortie/hack/LICENSE",
		"drwxr-xr-x licenses/go.yaml.in/", "drwxr-xr-x licenses/go.yaml.in/yaml/", "drwxr-xr-x licenses/go.yaml.in/yaml/v3/",
		"-rw-r--r-- licenses/go.yaml.in/yaml/v3/LICENSE", "-rw-r--r-- licenses/go.yaml.in/yaml/v3/NOTICE",
		"drwxr-xr-x licenses/golang.org/", "drwxr-xr-x licenses/golang.org/x/", "drwxr-xr-x licenses/golang.org/x/crypto/",
		"drwxr-xr-x licenses/golang.org/x/crypto/x509roots/", "drwxr-xr-x licenses/golang.org/x/crypto/x509roots/fallback/",
		"-rw-r--r-- licenses/golang.org/x/crypto/x509roots/fallback/LICENSE",
		"drwxr-xr-x licenses/stdlib/", "-rw-r--r-- licenses/stdlib/LICENSE", "-rw-r--r-- licenses/stdlib/PATENTS",
		"drwxr-xr-x opt/", "drwxr-xr-x opt/cni/", "drwxr-xr-x opt/cni/bin/", "-rwxr-xr-x opt/cni/bin/bandwidth",
		"-rwxr-xr-x opt/cni/bin/calico", "-rwxr-xr-x opt/cni/bin/calico-ipam", "-rwxr-xr-x opt/cni/bin/loopback",
		"-rwxr-xr-x opt/cni/bin/portmap",
		"drwxr-xr-x usr/", "drwxr-xr-x usr/bin/", "Lrwxrwxrwx usr/bin/install", "Lrwxrwxrwx usr/bin/kube-controllers", "Lrwxrwxrwx usr/bin/node",
		"-rwxr-xr-x usr/bin/tortie", "drwxr-xr-x usr/share/", "drwxr-xr-x usr/share/sbom/", "-rw-r--r-- usr/share/sbom/tortie.spdx.json",
	}, names)
	if node, ipam := string(files["usr/bin/node"]), string(files["opt/cni/bin/calico-ipam"]); node != "tortie" ||
		ipam != "opt/cni/bin/calico" {
		t.Errorf("links to %q and %q", node, ipam)
	}
	if beside := readFile(t, strings.TrimSuffix(o.out, ".tar")+".amd64.spdx.json"); !bytes.Equal(beside, files[sbomPath]) {
		t.Error("the list beside the archive is not the one in it")
	}
}

func TestArchiveOfTwoArchitectures(t *testing.T) {
	o := testOptions(t, "amd64", "arm64")
	errtest.Must(t, run(o))
	a := readArchive(t, o.out)
	outer := a.manifests("index.json")
	if len(outer) != 1 || outer[0].MediaType != "application/vnd.oci.image.index.v1+json" ||
		outer[0].Annotations["io.containerd.image.name"] != o.ref {
		t.Fatalf("index %+v", outer)
	}
	inner := a.manifests(blob(outer[0].Digest))
	if len(inner) != 2 {
		t.Fatalf("images %+v", inner)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		if inner[i].Platform.Architecture != arch {
			t.Errorf("image %d is of %s", i, inner[i].Platform.Architecture)
		}
		_, files := a.image(inner[i], o)
		for name, content := range files {
			if slices.Contains(binaries, name) && checkBinary(content, arch) != nil {
				t.Errorf("%s: %v", name, checkBinary(content, arch))
			}
		}
	}
}

func TestSameInputSameBytes(t *testing.T) {
	o := testOptions(t, "arm64", "amd64")
	var sums [2]map[string][32]byte
	for i := range sums {
		errtest.Must(t, run(o))
		sums[i] = map[string][32]byte{}
		for _, suffix := range []string{".tar", ".amd64.spdx.json", ".arm64.spdx.json"} {
			sums[i][suffix] = sha256.Sum256(readFile(t, o.beside(suffix)))
		}
		for _, name := range binaries { // times and modes of the input must not matter
			from := filepath.Join(o.programs[0].dir, filepath.Base(name))
			errtest.Must(t, errors.Join(os.Chmod(from, 0o755), os.Chtimes(from, time.Unix(1, 0), time.Unix(1, 0))))
		}
	}
	if !maps.Equal(sums[0], sums[1]) {
		t.Errorf("two builds differ: %x, %x", sums[0], sums[1])
	}
}

// The Dockerfile copies this tree.
func TestTreeIsTheLayer(t *testing.T) {
	o := testOptions(t, "amd64")
	o.tree = filepath.Join(t.TempDir(), "tree")
	errtest.Must(t, run(o))
	files, err := collect(o.programs[0].dir, "amd64", o)
	errtest.Must(t, err)
	content, err := layer(files)
	errtest.Must(t, err)
	want, _ := untar(t, content)
	var got []string
	err = filepath.WalkDir(o.tree, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == o.tree {
			return err
		}
		info, err := entry.Info()
		name, _ := filepath.Rel(o.tree, path)
		if entry.IsDir() {
			name += "/"
		}
		got = append(got, info.Mode().String()+" "+name)
		return err
	})
	byName := func(a, b string) int { return strings.Compare(a[11:], b[11:]) }
	slices.SortFunc(want, byName)
	slices.SortFunc(got, byName)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("files (-layer +tree): %v\n%s", err, diff)
	}
}

func TestBadInput(t *testing.T) {
	dirs := map[string]string{"amd64": programDir(t, "amd64"), "arm64": programDir(t, "arm64")}
	missing, text := programDir(t, "amd64"), programDir(t, "amd64")
	errtest.Must(t,
		errors.Join(os.Remove(filepath.Join(missing, "portmap")), os.WriteFile(filepath.Join(text, "calico"), []byte("#!/bin/sh"), 0o755)))
	for _, c := range []struct{ bin, want string }{
		{"amd64=" + missing, "make build"},
		{"amd64=" + text, "not a program"},
		{"amd64=" + dirs["arm64"], "in the image of amd64"},
		{"riscv64=" + dirs["amd64"], `architecture "riscv64"`},
	} {
		o := testOptions(t)
		err := o.programs.Set(c.bin)
		if err == nil {
			err = run(o)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.bin, err, c.want)
		}
	}
	if err := run(testOptions(t)); err == nil {
		t.Error("an image without binaries")
	}
}

// spdxID and licenceID are what SPDX 2.3 allows, and what is known here.
var (
	spdxID     = regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`)
	creator    = regexp.MustCompile(`^(Organization|Tool|Person): \S`)
	licenceIDs = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", noAssertion}
)

// checkSPDX holds a document against the rules of SPDX 2.3 for what it has: https://spdx.github.io/spdx-spec/v2.3/
func checkSPDX(t *testing.T, text []byte) sbom {
	t.Helper()
	var doc sbom
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	errtest.Must(t, d.Decode(&doc))
	namespace, err := url.Parse(doc.DocumentNamespace)
	if err != nil || namespace.Scheme == "" || namespace.Fragment != "" {
		t.Errorf("namespace %q, %v", doc.DocumentNamespace, err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.DataLicense != "CC0-1.0" || doc.SPDXID != "SPDXRef-DOCUMENT" || doc.Name == "" {
		t.Errorf("document %q %q %q %q", doc.SPDXVersion, doc.DataLicense, doc.SPDXID, doc.Name)
	}
	if _, err := time.Parse("2006-01-02T15:04:05Z", doc.CreationInfo.Created); err != nil {
		t.Error(err)
	}
	for _, c := range doc.CreationInfo.Creators {
		if !creator.MatchString(c) {
			t.Errorf("creator %q", c)
		}
	}
	known := map[string]bool{doc.SPDXID: true}
	add := func(id string) {
		if known[id] || !spdxID.MatchString(id) {
			t.Errorf("identifier %q is there twice, or is none", id)
		}
		known[id] = true
	}
	for _, p := range doc.Packages {
		add(p.SPDXID)
		checkPackage(t, p)
	}
	for _, f := range doc.Files {
		add(f.SPDXID)
		if !strings.HasPrefix(f.Name, "./") || len(f.Checksums) == 0 || f.Checksums[0].Algorithm != "SHA1" || len(f.LicenseInfo) == 0 {
			t.Errorf("file %+v", f)
		}
	}
	described, contained := 0, map[string]bool{}
	for _, r := range doc.Relationships {
		if !known[r.From] || !known[r.To] {
			t.Errorf("relationship %+v of what is not there", r)
		}
		switch r.Type {
		case "DESCRIBES":
			described++
		case "CONTAINS":
			contained[r.To] = true
		case "STATIC_LINK", "GENERATED_FROM":
		default:
			t.Errorf("relationship %q", r.Type)
		}
	}
	if described != 1 || len(contained) != len(doc.Files) {
		t.Errorf("the document describes %d packages, and the image contains %d of %d files", described, len(contained), len(doc.Files))
	}
	return doc
}

func checkPackage(t *testing.T, p spdxPackage) {
	t.Helper()
	if p.Name == "" || p.VersionInfo == "" || p.DownloadLocation == "" || p.Copyright == "" || p.FilesAnalyzed ||
		p.Supplier != noAssertion && !creator.MatchString(p.Supplier) {
		t.Errorf("package %+v", p)
	}
	for _, expression := range []string{p.LicenseConcluded, p.LicenseDeclared} {
		for id := range strings.SplitSeq(expression, " AND ") {
			if !slices.Contains(licenceIDs, id) {
				t.Errorf("package %s: licence %q", p.Name, id)
			}
		}
	}
	for _, ref := range p.ExternalRefs {
		if ref.Category != "PACKAGE-MANAGER" || ref.Type != "purl" || !strings.HasPrefix(ref.Locator, "pkg:golang/") {
			t.Errorf("package %s: reference %+v", p.Name, ref)
		}
	}
}

func TestSBOM(t *testing.T) {
	o := testOptions(t, "amd64")
	errtest.Must(t, run(o))
	a := readArchive(t, o.out)
	_, files := a.image(a.manifests("index.json")[0], o)
	doc := checkSPDX(t, files[sbomPath])
	listed := map[string]checksum{}
	for _, f := range doc.Files {
		listed[strings.TrimPrefix(f.Name, "./")] = f.Checksums[1]
	}
	collected, err := collect(o.programs[0].dir, "amd64", o)
	errtest.Must(t, err)
	for name, f := range collected {
		content := files[name]
		if f.hard {
			content = files[f.target]
		}
		if name == sbomPath || f.target != "" && !f.hard {
			continue
		}
		if want := (checksum{"SHA256", fmt.Sprintf("%x", sha256.Sum256(content))}); listed[name] != want {
			t.Errorf("%s: %+v, want %+v", name, listed[name], want)
		}
		delete(listed, name)
	}
	if len(listed) > 0 {
		t.Errorf("not in the image: %v", listed)
	}
	licences := map[string]string{}
	for _, p := range doc.Packages {
		licences[p.Name] = p.LicenseConcluded
	}
	difftest.Want(t, "packages", map[string]string{
		o.ref: noAssertion, "stdlib": "BSD-3-Clause", "github.com/tortie-net/tortie/hack": "Apache-2.0",
		"go.yaml.in/yaml/v3": "Apache-2.0 AND MIT", rootsModule: "BSD-3-Clause",
	}, licences)
}

// A module without a licence cannot be passed on, so there is no image of it.
func TestNoLicenceNoImage(t *testing.T) {
	o := testOptions(t, "amd64")
	o.root = t.TempDir()
	if err := run(o); err == nil || !strings.Contains(err.Error(), "LICENSE") {
		t.Errorf("an image without our own licence: %v", err)
	}
}

// No Docker runs here, so what can be compared without it is compared: where the files come from, and the
// configuration. That the files are the same is TestTreeIsTheLayer's.
func TestDockerfileIsTheSameImage(t *testing.T) {
	text := string(readFile(t, "../../Dockerfile"))
	o := testOptions(t, "amd64")
	files, err := collect(o.programs[0].dir, "amd64", o)
	errtest.Must(t, err)
	image, err := build(files, "amd64", o)
	errtest.Must(t, err)
	config, err := image.ConfigFile()
	errtest.Must(t, err)
	variables := map[string]string{"version": "${VERSION}", "revision": "${REVISION}", "created": "${CREATED}"}
	for key, value := range config.Config.Labels {
		if variable := variables[strings.TrimPrefix(key, "org.opencontainers.image.")]; variable != "" {
			value = variable
		}
		if want := key + `="` + value + `"`; !strings.Contains(text, want) {
			t.Errorf("Dockerfile has not the label %s", want)
		}
	}
	for _, want := range []string{
		"RUN make --no-print-directory tree ", "FROM scratch", "COPY --from=build /src/dist/tree/ /",
		"USER " + config.Config.User, `ENTRYPOINT ["` + config.Config.Entrypoint[0] + `"]`, "ENV " + config.Config.Env[0],
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("Dockerfile has not %s", want)
		}
	}
}
