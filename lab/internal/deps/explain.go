package deps

import (
	"context"
	"errors"
	"regexp"
)

// causes are what apt prints when it is not at fault, and what helps.
var causes = []struct {
	said   *regexp.Regexp
	remedy string
}{
	{regexp.MustCompile(`(?m)^.*(?:No space left on device|don't have enough free space).*$`),
		"the disk is full: apt-get clean, or remove files below /var/cache/apt and /usr"},
	{regexp.MustCompile(`(?m)^.*(?:failure resolving|Could not resolve|Could not connect|Unable to connect|Network is unreachable|onnection timed out|Failed to fetch).*$`),
		"Debian's packages cannot be downloaded: there is no network, or apt needs a proxy (Acquire::http::Proxy); run this once with network"},
	{regexp.MustCompile(`(?m)^.*(?:Unable to locate package|has no installation candidate|was not found|can't be found).*$`),
		"apt does not know the package: there was no network for apt-get update, or /etc/apt lacks Debian's main section"},
	{regexp.MustCompile(`(?m)^.*(?:Could not get lock|Unable to acquire the dpkg frontend lock).*$`),
		"another apt is at work: let it end, and try again"},
}

// Explain returns an error that says what to do about one of apt's, if that is known, and the error itself if not.
func Explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if remedy := explain(err.Error()); remedy != "" {
		return errors.New(remedy)
	}
	return err
}

// explain turns what apt printed into a line with the remedy: "" if it says nothing that we know.
func explain(output string) string {
	for _, c := range causes {
		if line := c.said.FindString(output); line != "" {
			return c.remedy + ` ("` + line + `")`
		}
	}
	return ""
}
