package deps

import (
	"context"
	"errors"
	"regexp"

	"github.com/tortie-net/tortie/lab/internal/remedy"
)

// causes are apt's messages about problems of the machine, with remedies.
var causes = []remedy.Cause{
	{Said: regexp.MustCompile(`(?m)^.*(?:No space left on device|don't have enough free space).*$`),
		Remedy: "the disk is full: apt-get clean, or remove files below /var/cache/apt and /usr"},
	{Said: regexp.MustCompile(`(?m)^.*(?:failure resolving|Could not resolve|Could not connect|Unable to connect|Network is ` +
		`unreachable|onnection timed out|Failed to fetch).*$`),
		Remedy: "Debian's packages cannot be downloaded: there is no network, or apt needs a proxy (Acquire::http::Proxy); run " +
			"this once with network"},
	{Said: regexp.MustCompile(`(?m)^.*(?:Unable to locate package|has no installation candidate|was not found|can't be found).*$`),
		Remedy: "apt does not know the package: there was no network for apt-get update, or /etc/apt lacks Debian's main section"},
	{Said: regexp.MustCompile(`(?m)^.*(?:Could not get lock|Unable to acquire the dpkg frontend lock).*$`),
		Remedy: "another apt is at work: let it end, and try again"},
}

// Explain returns an error of apt with its remedy, if that is known, or the error itself.
func Explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if line := remedy.Of(err.Error(), causes); line != "" {
		return errors.New(line)
	}
	return err
}
