#!/bin/sh
# For go test -exec in make check: runs an ordinary user's tests as root of a user namespace, with mounts of its own. A
# test that needs root of the machine says so by needtest.Root.
PATH=$PATH:/usr/sbin:/sbin exec unshare --map-root-user --mount sh -c 'mount -t tmpfs none /run && exec "$@"' rootless "$@"
