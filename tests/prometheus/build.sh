#!/usr/bin/env bash
# Builds the real promtool that the chart's alerts are tested with, and prints the directory it is in.
# MUSTER_PROMTOOL_BIN=DIR names a ready-made one instead. As Helm it has no module here: `go install` of an exact version is
# pinned by the checksum database as a go.sum would be.
# See ../controlplane/cached-build.sh for where the cache is.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../controlplane/cached-build.sh"

# 3.16.0, as its Go module counts.
version=v0.316.0
use_ready_made MUSTER_PROMTOOL_BIN promtool
require_tools "promtool $version" MUSTER_PROMTOOL_BIN

export GOFLAGS='-trimpath -buildvcs=false'
# Tests of rules discover no targets: without the clients of all clouds it is half the code.
tags=remove_all_sd
key=$(echo "$version $tags $go_version $GOFLAGS" | sha256sum | cut -c1-16)

build() {
    GOBIN=$1 go install -v -tags "$tags" -ldflags "-s -w" "github.com/prometheus/prometheus/cmd/promtool@$version" 2>&1 |
        show_progress promtool
}

cached_build promtool "$key" build
