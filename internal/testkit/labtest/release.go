package labtest

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// ImageRepository is the name of the product's image on the nodes, and ImageTag is the tag that `make image` gives it.
const (
	ImageRepository = "docker.io/tortie-net/tortie"
	ImageTag        = "dev"
)

// SetImage returns the value of Helm's --set that selects an image which the lab's nodes have.
func SetImage(tag string) string {
	return "image.repository=" + ImageRepository + ",image.tag=" + tag
}

// Image returns the path of the image archive that `make image` writes.
func Image(t testing.TB) string {
	t.Helper()
	archive := filepath.Join(Root(), "dist", "tortie.tar")
	if _, err := os.Stat(archive); err != nil {
		t.Fatalf("the nodes need Tortie's image: make image: %v", err)
	}
	return archive
}

// BuildImage builds an image of the sources below root, with a tag that is also its version, so that its programs
// differ from another tag's. It returns the archive's path.
func BuildImage(t testing.TB, root, tag string) string {
	t.Helper()
	needtest.More(t, "the image, built")
	dir := t.TempDir()
	archive := filepath.Join(dir, "tortie.tar")
	out, err := exec.CommandContext(t.Context(), "make", "-C", root, "--no-print-directory", "image", "VERSION="+tag,
		"IMAGE="+ImageRepository+":"+tag, "BIN="+filepath.Join(dir, "bin"), "OUT="+archive).CombinedOutput()
	if err != nil {
		t.Fatalf("make image: %v: %s", err, out)
	}
	return archive
}

// ChartDir returns the directory of the chart.
func ChartDir() string { return chartOf(Root()) }

func chartOf(root string) string { return filepath.Join(root, "charts", "tortie") }

// Release installs or upgrades the chart by Helm (verb) with the image of a tag, and returns when everything is ready.
// flags are Helm's. IPIP is not required of the kernel. The chart is for the group that Group returns.
func (l *Lab) Release(t testing.TB, verb, tag string, flags ...string) {
	t.Helper()
	l.ReleaseOf(t, Root(), verb, tag, flags...)
}

// ReleaseOf is Release with the chart of the sources below root.
func (l *Lab) ReleaseOf(t testing.TB, root, verb, tag string, flags ...string) {
	t.Helper()
	args := []string{verb, "tortie", chartOf(root), "--namespace", chartNamespace, "--wait", "--timeout", releasePatience.String(),
		"--set", SetImage(tag) + ",ipPool.ipipMode=Never"}
	if l.group == groups.V3 {
		args = append(args, "--set", "apiGroup="+path.Base(string(l.group)))
	}
	l.Run(t, "helm", append(args, flags...)...)
}
