package deps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/tortie-net/tortie/lab/internal/proc"
)

// unpack downloads a package and unpacks it into its directory below cache, atomically.
func (n Need) unpack(ctx context.Context, cache string, log io.Writer) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(cache, "fetching-"+n.Package+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	deb, err := n.download(ctx, tmp, log)
	if err != nil {
		return err
	}
	root := filepath.Join(tmp, "root")
	if err := proc.RunIn(ctx, tmp, "dpkg-deb", "-x", deb, root); err != nil {
		return err
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	target := filepath.Join(cache, n.Unpack)
	if err := os.RemoveAll(target); err != nil { // incomplete, as its files are missing
		return err
	}
	return os.Rename(root, target)
}

// download downloads the package from this machine's sources or, if its release of Debian has it no longer, from the
// last one that had it.
func (n Need) download(ctx context.Context, dir string, log io.Writer) (string, error) {
	fmt.Fprintf(log, "deps: downloading %s %s\n", n.Package, n.Version)
	own := aptDownload(ctx, dir, n)
	if own == nil {
		return theDeb(dir)
	}
	old, err := oldRelease(dir)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(log, "deps: not in this machine's sources, asking Debian %s\n", oldName)
	if err := proc.RunIn(ctx, dir, "apt-get", append(old, "-qq", "update")...); err != nil {
		return "", errors.Join(own, err)
	}
	if err := aptDownload(ctx, dir, n, old...); err != nil {
		return "", errors.Join(own, err)
	}
	return theDeb(dir)
}

func aptDownload(ctx context.Context, dir string, n Need, options ...string) error {
	// Without apt's sandbox user, which may not be able to read the directory.
	args := append(options, "-qq", "-o", "APT::Sandbox::User=root", "download", n.Package+"="+n.Version)
	return proc.RunIn(ctx, dir, "apt-get", args...)
}

func theDeb(dir string) (string, error) {
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", errors.Join(err, fmt.Errorf("apt-get download left %d files", len(debs)))
	}
	return debs[0], nil
}

const (
	oldName   = "bookworm"
	oldSource = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian " + oldName + " main\n"
)

// oldRelease returns options with which apt uses only oldName, and keeps its lists below dir.
func oldRelease(dir string) ([]string, error) {
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	list := filepath.Join(dir, "sources.list")
	if err := os.WriteFile(list, []byte(oldSource), 0o644); err != nil {
		return nil, err
	}
	var options []string
	for _, set := range []string{
		"Dir::Etc::SourceList=" + list, "Dir::Etc::SourceParts=/dev/null",
		"Dir::State::Lists=" + filepath.Join(dir, "lists"), "Dir::Cache=" + filepath.Join(dir, "cache"),
		"APT::Sandbox::User=root",
	} {
		options = append(options, "-o", set)
	}
	return options, nil
}
