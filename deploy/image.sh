#!/bin/sh
# image.sh [DIR] does what the Dockerfile does, without Docker, into DIR (default: a new folder under /tmp), and checks the result:
# the context that .dockerignore leaves, the build, the files of the final stage. It fails when the binary is not static, does
# not start, or is larger than an image should be. Only the base image is not reproduced.
set -eu
limit=30000000 # bytes
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$(mktemp -d /tmp/reconciler-image.XXXXXX)}
version=$(git -C "$root" describe --tags --always --dirty 2>/dev/null || echo unknown)

fail() {
	echo "image.sh: $*" >&2
	exit 1
}

echo "== context: what .dockerignore leaves"
mkdir -p "$dir/context" "$dir/rootfs"
grep -v '^#' "$root/.dockerignore" >"$dir/ignored"
# The patterns have the same meaning for tar, as long as none begins with "!".
if grep -q '^!' "$dir/ignored"; then fail ".dockerignore has exceptions, which tar does not know"; fi
(cd "$root" && find . -mindepth 1 -maxdepth 1 -printf '%P\0') >"$dir/top"
tar --create --file="$dir/context.tar" --directory="$root" --anchored --wildcards --wildcards-match-slash \
	--exclude-from="$dir/ignored" --null --verbatim-files-from --files-from="$dir/top"
tar --extract --file="$dir/context.tar" --directory="$dir/context"
(cd "$dir/context" && find . -type f | wc -l && du -sh . && find . -mindepth 1 -maxdepth 1 | sort)

echo "== stage build: $version"
(cd "$dir/context" && sh deploy/build.sh "$dir/rootfs/reconciler" "$version")

echo "== final stage: files added to the base image"
(cd "$dir/rootfs" && find . -type f -exec ls -l {} +)
file "$dir/rootfs/reconciler"
file "$dir/rootfs/reconciler" | grep -q 'statically linked' || fail "the binary is not static"
size=$(wc -c <"$dir/rootfs/reconciler")
echo "$size bytes, the limit is $limit"
[ "$size" -lt "$limit" ] || fail "the binary has $size bytes, more than $limit"
env -i "$dir/rootfs/reconciler" version | tee "$dir/version"
grep -qF "$version" "$dir/version" || fail "the binary does not know its version $version"
code=0
(cd "$dir/rootfs" && env -i ./reconciler healthcheck) || code=$?
[ "$code" -eq 1 ] || fail "healthcheck exits with $code where no daemon is, and should with 1"
echo "good: $dir"
