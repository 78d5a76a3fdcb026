#!/bin/sh
# build.sh OUT [VERSION] builds the binary of the image and of releases. The Dockerfile and image.sh both call it, so that what
# is measured here is what runs there.
#
# GOOS and GOARCH say for what. The binary is static, and the same sources, version and Go give the same bytes on every machine.
set -eu
out=${1:?usage: build.sh OUT [VERSION]}
version=${2:-}
cd "$(dirname "$0")/.."
CGO_ENABLED=0 exec go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" -o "$out" ./cmd/reconciler
