package labtest

import (
	"path/filepath"
	"testing"
)

// ImageRepository is what a node knows the product's image by, and ImageTag is the tag that `make image` gives it.
const (
	ImageRepository = "docker.io/tortie-net/tortie"
	ImageTag        = "dev"
)

// SetImage is the value of Helm's --set with which the chart takes an image that the nodes of a lab have.
func SetImage(tag string) string {
	return "image.repository=" + ImageRepository + ",image.tag=" + tag
}

// Image is the archive with the image of these sources, which `make image` writes.
func Image() string { return filepath.Join(Root(), "dist", "tortie.tar") }

// ChartDir is the directory of the chart.
func ChartDir() string { return filepath.Join(Root(), "charts", "tortie") }

// Release lets Helm install the chart, or upgrade it, with the image of a tag, and returns when all is ready. flags are Helm's. The
// kernel of a lab's nodes need not have IPIP.
func (l *Lab) Release(t testing.TB, verb, tag string, flags ...string) {
	t.Helper()
	args := []string{verb, "tortie", ChartDir(), "--namespace", chartNamespace, "--wait", "--timeout", "4m",
		"--set", SetImage(tag) + ",ipPool.ipipMode=Never"}
	l.Run(t, "helm", append(args, flags...)...)
}
