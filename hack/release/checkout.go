package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// checkout is git's state of the directory in which a release is made.
type checkout struct {
	head    string    // commit
	created time.Time // of that commit
	tag     string    // the version's commit, "" without such a tag
	tags    []string  // of head
	changed string    // files that are changed, or not in git
}

// look reads the state from git.
func look(root, version string) (c checkout, err error) {
	git := func(args ...string) string {
		if err != nil {
			return ""
		}
		var out string
		out, err = output(root, append([]string{"git"}, args...)...)
		return out
	}
	c.head = git("rev-parse", "HEAD")
	c.changed = git("status", "--porcelain", "--untracked-files=all")
	c.tags = strings.Fields(git("tag", "--points-at", "HEAD"))
	if git("tag", "--list", version) != "" {
		c.tag = git("rev-parse", "refs/tags/"+version+"^{commit}")
	}
	created := git("log", "-1", "--format=%cI")
	if err != nil {
		return c, fmt.Errorf("reading the state of the checkout: %w", err)
	}
	at, err := time.Parse(time.RFC3339, created)
	if err != nil {
		return c, fmt.Errorf("reading the time of commit %s: %w", c.head, err)
	}
	c.created = at.UTC()
	return c, nil
}

// check returns why a version cannot be released from the checkout, or nil.
func (c checkout) check(version string) error {
	switch {
	case c.changed != "":
		return fmt.Errorf("the checkout has changes that no commit has: commit them, or put them away (git stash -u):\n%s", c.changed)
	case !semver.IsValid(version) || semver.Canonical(version) != version:
		return fmt.Errorf("VERSION is %q: want one such as v0.1.0 (make release VERSION=v0.1.0)", version)
	case slices.Contains(c.tags, version):
		return nil
	case c.tag != "":
		return fmt.Errorf("VERSION is %s, whose tag is at commit %s, and HEAD is %s: git checkout %s", version, c.tag, c.head, version)
	case len(c.tags) > 0:
		return fmt.Errorf("VERSION is %s, and HEAD has the tag %s: name that one, or git tag -a %s", version, strings.Join(c.tags, ", "), version)
	}
	return fmt.Errorf("VERSION is %s, and there is no such tag: git tag -a %s", version, version)
}
