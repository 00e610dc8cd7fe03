package built

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const (
	root    = "../../.."
	archive = root + "/dist/tortie-all.tar"
)

// Size limits of the image's files, in bytes.
const (
	imageBudget   = 63e6
	pluginBudget  = 10e6
	licenceBudget = 1e6
	plugins       = "opt/cni/bin/"
)

// unpack extracts a tar below a directory, and returns the size of each file; hard links have 0.
func unpack(t *testing.T, from io.Reader, dir string) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return sizes
		}
		errtest.Must(t, err)
		errtest.Must(t, unpackOne(h, r, dir))
		if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeLink {
			sizes[h.Name] = h.Size
		}
	}
}

func unpackOne(h *tar.Header, r io.Reader, dir string) error {
	to := filepath.Join(dir, h.Name)
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(to, 0o755)
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, to)
	case tar.TypeLink:
		return os.Link(filepath.Join(dir, h.Linkname), to)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { // the archive itself has no directories
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, h.FileInfo().Mode())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// open reads an archive as a registry client does.
func open(t *testing.T, name string) (v1.ImageIndex, map[string]v1.Image) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatalf("%v: make image-all", err)
	}
	defer f.Close()
	dir := t.TempDir()
	unpack(t, f, dir)
	outer, err := layout.ImageIndexFromPath(dir)
	errtest.Must(t, err)
	index, err := outer.ImageIndex(manifests(t, outer)[0].Digest)
	errtest.Must(t, err)
	images := map[string]v1.Image{}
	for _, m := range manifests(t, index) {
		if images[m.Platform.Architecture], err = index.Image(m.Digest); err != nil {
			t.Fatal(err)
		}
	}
	return index, images
}

func manifests(t *testing.T, index v1.ImageIndex) []v1.Descriptor {
	t.Helper()
	m, err := index.IndexManifest()
	errtest.Must(t, err)
	return m.Manifests
}

// extract writes an image's files below a directory.
func extract(t *testing.T, image v1.Image, dir string) map[string]int64 {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	errtest.Must(t, err)
	defer content.Close()
	return unpack(t, content, dir)
}

func config(t *testing.T, image v1.Image) v1.Config {
	t.Helper()
	file, err := image.ConfigFile()
	errtest.Must(t, err)
	return file.Config
}

func TestBudget(t *testing.T) {
	_, images := open(t, archive)
	for _, arch := range []string{"amd64", "arm64"} {
		if images[arch] == nil {
			t.Fatalf("no image of %s", arch)
		}
		var sum int64
		for name, size := range extract(t, images[arch], t.TempDir()) {
			sum += size
			if strings.HasPrefix(name, plugins) && size > pluginBudget {
				t.Errorf("%s: %s has %.1f MB, more than %.0f", arch, name, float64(size)/1e6, pluginBudget/1e6)
			}
		}
		t.Logf("%s: %.1f MB", arch, float64(sum)/1e6)
		if sum > imageBudget {
			t.Errorf("the image of %s has %.1f MB, more than %.0f", arch, float64(sum)/1e6, imageBudget/1e6)
		}
	}
}

// The parsers of BMP and MRT have known vulnerabilities, and parsers of configuration files would add attack surface:
// neither is linked (docs/image.md, hack/vulns/exceptions.yaml). Function names remain in a stripped program, for stack
// traces.
func TestNotLinked(t *testing.T) {
	_, images := open(t, archive)
	dir := t.TempDir()
	extract(t, images["amd64"], dir)
	program, err := os.ReadFile(filepath.Join(dir, "usr/bin/tortie"))
	errtest.Must(t, err)
	const gobgp, viper = "github.com/osrg/gobgp/v3/pkg/", "github.com/spf13/viper."
	for name, linked := range map[string]bool{
		gobgp + "packet/bgp.ParseBGPBody": true, gobgp + "packet/bmp.ParseBMPMessage": false, gobgp + "packet/bmp.SplitBMP": false,
		gobgp + "packet/mrt.parseRibEntry": false, gobgp + "packet/mrt.ParseBody": false, gobgp + "config/oc.ReadConfigfile": false,
		viper + "(*Viper).IsSet": true, viper + "(*Viper).ReadInConfig": false,
	} {
		if bytes.Contains(program, []byte(name)) != linked {
			t.Errorf("%s: linked is %t, want %t", name, !linked, linked)
		}
	}
}

// The image has the licence of every listed module.
func TestLicences(t *testing.T) {
	_, images := open(t, archive)
	dir := t.TempDir()
	sizes := extract(t, images["amd64"], dir)
	text, err := os.ReadFile(filepath.Join(dir, "usr/share/sbom/tortie.spdx.json"))
	errtest.Must(t, err)
	var list struct {
		Packages []struct{ Name, PrimaryPackagePurpose, LicenseConcluded string }
	}
	errtest.Must(t, json.Unmarshal(text, &list))
	count, size := 0, int64(0)
	for _, p := range list.Packages {
		if p.PrimaryPackagePurpose != "LIBRARY" {
			continue
		}
		count++
		found, err := filepath.Glob(filepath.Join(dir, "licenses", p.Name, "*"))
		if err != nil || len(found) == 0 || p.LicenseConcluded == "NOASSERTION" {
			t.Errorf("%s: licence %q, texts %v, %v", p.Name, p.LicenseConcluded, found, err)
		}
	}
	for name, bytes := range sizes {
		if strings.HasPrefix(name, "licenses/") {
			size += bytes
		}
	}
	if count < 50 || size > licenceBudget {
		t.Errorf("%d modules, %d bytes of licences", count, size)
	}
	t.Logf("%d modules, %d bytes of licences", count, size)
}

// The programs of this machine's architecture run as the image's user, under each name.
func TestProgramsStart(t *testing.T) {
	_, images := open(t, archive)
	image := images[runtime.GOARCH]
	var user, group uint32
	if _, err := fmt.Sscanf(config(t, image).User, "%d:%d", &user, &group); err != nil || user == 0 {
		t.Fatalf("the image's user is %q", config(t, image).User)
	}
	dir, err := os.MkdirTemp("", "image-")
	errtest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	errtest.Must(t, os.Chmod(dir, 0o755))
	extract(t, image, dir)
	for name, env := range map[string]string{
		"usr/bin/tortie": "", "usr/bin/node": "", "usr/bin/install": "", "usr/bin/kube-controllers": "",
		plugins + "calico": "", plugins + "calico-ipam": "",
		plugins + "portmap": "CNI_COMMAND=VERSION", plugins + "bandwidth": "CNI_COMMAND=VERSION", plugins + "loopback": "CNI_COMMAND=VERSION",
	} {
		cmd, want := exec.Command(filepath.Join(dir, name), "-v"), "Tortie "+path.Base(name)+" "
		if env != "" {
			cmd, want = exec.Command(filepath.Join(dir, name)), `"supportedVersions"`
		}
		cmd.Env = []string{env}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: group}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, output %q, want %q", name, err, out, want)
		}
	}
}

// copySources copies the files that git tracks or would track.
func copySources(t *testing.T, to string) {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	out, err := list.Output()
	errtest.Must(t, err)
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not committed yet
		}
		dst := filepath.Join(to, name)
		errtest.Must(t, errors.Join(err, os.MkdirAll(filepath.Dir(dst), 0o755), os.WriteFile(dst, text, 0o644)))
	}
}

// The same sources in another directory, with other times and modes, give the same image, and the Dockerfile uses the
// same files.
func TestAnotherDirectoryGivesTheSame(t *testing.T) {
	index, images := open(t, archive)
	labels := config(t, images["amd64"]).Labels
	dir := filepath.Join(t.TempDir(), "another", "place")
	copySources(t, dir)
	run := func(target string) {
		t.Helper()
		cmd := exec.Command("make", "--no-print-directory", target, "ARCH=amd64")
		for variable, label := range map[string]string{"VERSION": "version", "REVISION": "revision", "CREATED": "created"} {
			cmd.Args = append(cmd.Args, variable+"="+labels["org.opencontainers.image."+label])
		}
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
	}
	run("image-all")
	other, others := open(t, filepath.Join(dir, "dist/tortie-all.tar"))
	want, err := index.Digest()
	errtest.Must(t, err)
	if got, err := other.Digest(); err != nil || got != want {
		t.Fatalf("digest %v, %v; %s has %v, so the build depends on its place (or the sources have changed since: make image-all)",
			got, err, archive, want)
	}
	for _, suffix := range []string{".amd64.spdx.json", ".arm64.spdx.json"} {
		name := strings.TrimSuffix(archive, ".tar") + suffix
		if out, err := exec.Command("cmp", name, filepath.Join(dir, "dist", filepath.Base(name))).CombinedOutput(); err != nil {
			t.Errorf("%s depends on the place: %v\n%s", name, err, out)
		}
	}
	run("tree")
	layer := t.TempDir()
	extract(t, others["amd64"], layer)
	if out, err := exec.Command("diff", "-r", "--no-dereference", layer, filepath.Join(dir, "dist/tree")).CombinedOutput(); err != nil {
		t.Errorf("the Dockerfile's files are others: %v\n%s", err, out)
	}
}
