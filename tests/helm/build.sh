#!/usr/bin/env bash
# Builds the real Helm that the tests install the chart with, and prints the directory it is in; `build.sh 3` the one of before.
# MUSTER_HELM_BIN=DIR (MUSTER_HELM3_BIN) names a ready-made one instead. Helm has no module here: sharing one with
# Kubernetes would force Kubernetes' library versions on it, and `go install` of an exact version is
# pinned by the checksum database as a go.sum would be.
# See ../controlplane/cached-build.sh for where the cache is.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../controlplane/cached-build.sh"

case ${1-4} in
3) version=v3.19.0 ready_made=MUSTER_HELM3_BIN ;;
4) version=v4.3.1 ready_made=MUSTER_HELM_BIN ;;
*) fail "there is no Helm $1 here: 3 or 4" ;;
esac
use_ready_made "$ready_made" helm
require_tools "Helm $version" "$ready_made"

# -mod=readonly has no place here: `go install PACKAGE@VERSION` ignores every module around it.
export GOFLAGS='-trimpath -buildvcs=false'
key=$(echo "$version $go_version $GOFLAGS" | sha256sum | cut -c1-16)

build() {
    GOBIN=$1 go install -v -ldflags "-s -w" "helm.sh/helm/${version%%.*}/cmd/helm@$version" 2>&1 | show_progress Helm
}

cached_build helm "$key" build
