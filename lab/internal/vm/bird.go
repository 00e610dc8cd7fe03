package vm

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/tortie-net/tortie/lab/internal/deps"
	"github.com/tortie-net/tortie/lab/internal/proc"
)

// birdPackages matches the packages of BIRD 2 and of its libraries, at the beginnings of lines.
var birdPackages = regexp.MustCompile(`(?m)^(?:bird2|zlib1g|lib[a-z0-9.+-]+)$`)

// FetchBIRD returns a directory with BIRD 2 of Debian's unstable release and its libraries, and one with BIRD 3, which
// needs the same libraries. They are unpacked and never installed: their libraries conflict with this machine's.
func FetchBIRD(ctx context.Context, cache string, log io.Writer) (two, three string, err error) {
	two, three = filepath.Join(cache, "newest-bird"), filepath.Join(cache, "newest-bird3")
	lock, err := lockCache(cache)
	if err != nil {
		return "", "", err
	}
	defer lock.Close()
	_, noTwo := os.Stat(two)
	_, noThree := os.Stat(three)
	if noTwo == nil && noThree == nil {
		return two, three, nil
	}
	apt, err := newApt(ctx, cache, Unstable)
	if err != nil {
		return "", "", err
	}
	defer apt.close()
	fmt.Fprintln(log, "bird: downloading Debian's newest")
	err = proc.RunIn(ctx, "", "apt-get", apt.args("-qq", "update")...)
	if err == nil && noTwo != nil {
		err = apt.unpackWithLibraries(ctx, cache, two)
	}
	if err == nil && noThree != nil {
		err = apt.unpack(ctx, cache, []string{"bird3"}, filepath.Base(three))
	}
	if err != nil {
		return "", "", fmt.Errorf("fetch BIRD: %w", deps.Explain(err))
	}
	return two, three, nil
}

func (a *apt) unpackWithLibraries(ctx context.Context, cache, dir string) error {
	out, err := exec.CommandContext(ctx, "apt-cache", a.args("depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts",
		"--no-breaks", "--no-replaces", "--no-enhances", "bird2")...).Output()
	if err != nil {
		return err
	}
	return a.unpack(ctx, cache, birdPackages.FindAllString(string(out), -1), filepath.Base(dir))
}
