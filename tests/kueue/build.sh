#!/usr/bin/env bash
# Builds the real Kueue that `cargo xtask bench quota --real --peer kueue` measures Muster beside, and prints the directory it is
# in: the program `kueue`, and its definitions in `crd`. MUSTER_KUEUE_DIR=DIR names a ready-made one instead. It is built as its own
# module says, from a copy of that module, so that its own versions of libraries go into it. The checksum pins what is built.
# See ../controlplane/cached-build.sh for where the cache is.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../controlplane/cached-build.sh"

module=sigs.k8s.io/kueue version=v0.19.2 checksum=h1:mPNzr37u0nwI7ikST5QQl5gg6EgtYOAvC9ZbTgywdN8=
use_ready_made MUSTER_KUEUE_DIR kueue
require_tools "Kueue $version" MUSTER_KUEUE_DIR
linker_flags="-s -w -X $module/pkg/version.GitVersion=$version"
key=$(echo "$module $version $checksum $go_version $GOFLAGS $linker_flags" | sha256sum | cut -c1-16)

build() {
    local said sources=$1/sources
    said=$(cd / && GOFLAGS= go mod download -json "$module@$version") || return 1
    [[ $said == *"\"Sum\": \"$checksum\""* ]] || fail "$module $version is not what it was: its checksum is not $checksum"
    cp -r "$(sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p' <<<"$said")" "$sources" && chmod -R u+w "$sources" || return 1
    (cd "$sources" && go build -v -ldflags "$linker_flags" -o "$1/kueue" ./cmd/kueue) 2>&1 | show_progress Kueue || return 1
    mv "$sources/config/components/crd/bases" "$1/crd" && rm -rf "$sources"
}

cached_build kueue "$key" build
