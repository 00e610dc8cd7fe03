#!/bin/sh
# Makes a fresh Debian machine ready for make: git, make, and the newest Go of the release that go.mod names, in /usr/local/go. Run as root;
# a second run installs what is missing. Go comes from GOPROXY as the module golang.org/toolchain.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
release=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' "$root/go.mod")
[ "$(id -u)" = 0 ] || { echo "hack/debian.sh installs packages, so it must be run as root: sudo hack/debian.sh" >&2; exit 1; }

apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends ca-certificates curl git make unzip >/dev/null

PATH=$PATH:/usr/local/go/bin
case $(go env GOVERSION 2>/dev/null) in
go"$release".*) ;;
*)
	arch=$(dpkg --print-architecture)
	proxy=${GOPROXY:-https://proxy.golang.org}
	versions=${proxy%%[,|]*}/golang.org/toolchain/@v
	version=$(curl -fsS "$versions/list" | grep -E "^v[0-9.]+-go$release\.[0-9]+\.linux-$arch$" | sort -V | tail -n 1)
	[ -n "$version" ] || { echo "$versions/list has no go$release for linux-$arch: set GOPROXY to a proxy that has" >&2; exit 1; }
	echo "installing $version in /usr/local/go"
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	curl -fsS -o "$tmp/go.zip" "$versions/$version.zip"
	unzip -q "$tmp/go.zip" -d "$tmp"
	go=$tmp/golang.org/toolchain@$version
	chmod -R a+rX "$go"
	chmod 755 "$go"/bin/* "$go"/pkg/tool/*/* # a module's files cannot be executed
	rm -rf /usr/local/go
	mv "$go" /usr/local/go
	ln -sf /usr/local/go/bin/go /usr/local/go/bin/gofmt /usr/local/bin/
	;;
esac
echo "$(go version) is ready: make check, make deps, make demo"
