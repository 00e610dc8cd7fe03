package labtest

import (
	"path/filepath"
	"testing"
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
func Image() string { return filepath.Join(Root(), "dist", "tortie.tar") }

// ChartDir returns the directory of the chart.
func ChartDir() string { return filepath.Join(Root(), "charts", "tortie") }

// Release installs or upgrades the chart by Helm (verb) with the image of a tag, and returns when everything is ready. flags are Helm's. IPIP
// is not required of the kernel.
func (l *Lab) Release(t testing.TB, verb, tag string, flags ...string) {
	t.Helper()
	args := []string{verb, "tortie", ChartDir(), "--namespace", chartNamespace, "--wait", "--timeout", releasePatience.String(),
		"--set", SetImage(tag) + ",ipPool.ipipMode=Never"}
	l.Run(t, "helm", append(args, flags...)...)
}
