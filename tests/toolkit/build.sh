#!/usr/bin/env bash
# Builds the hook of NVIDIA's container toolkit, which an operator may have instead of ours, and prints the directory it is in.
# MUSTER_TOOLKIT_BIN=DIR names a ready-made one instead.
# See ../controlplane/cached-build.sh for where the cache is.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../controlplane/cached-build.sh"

version=v1.20.0
use_ready_made MUSTER_TOOLKIT_BIN nvidia-cdi-hook
require_tools "NVIDIA's container toolkit $version" MUSTER_TOOLKIT_BIN

# It opens NVIDIA's libraries by name, which takes C; what these define is looked for when it is called, and for hooks it never is.
export CGO_ENABLED=1
# -mod=readonly has no place here: `go install PACKAGE@VERSION` ignores every module around it.
export GOFLAGS='-trimpath -buildvcs=false'
linker='-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files -Wl,-z,lazy'
key=$(echo "$version $go_version $GOFLAGS $linker" | sha256sum | cut -c1-16)

build() {
    GOBIN=$1 go install -v -ldflags "-s -w '-extldflags=$linker'" \
        "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook@$version" 2>&1 |
        show_progress "NVIDIA's container toolkit"
}

cached_build toolkit "$key" build
