#!/usr/bin/env bash
# Builds the real Kubernetes of the tests and the demo, and prints the directory it is in:
# kubebin and one symbolic link for each program in it. Takes minutes on an empty Go build cache and
# nothing when the directory exists. MUSTER_KUBE_BIN=DIR names ready-made programs instead.
# See cached-build.sh for where the cache is.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/cached-build.sh"

programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl process-runtime)
use_ready_made MUSTER_KUBE_BIN "${programs[@]}"
require_tools "Kubernetes for the tests" MUSTER_KUBE_BIN
cd "$(dirname "$0")"

# The version stamp. Without it /version says v0.0.0-master: kubectl fails to parse that, Helm's
# kubeVersion checks fail, and versioned feature gates shift. The date and commit are fixed, so that
# the same sources give the same binary.
version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' go.mod)
IFS=. read -r major minor _ <<<"${version#v}"
linker_flags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    for value in "gitVersion=$version" "gitMajor=$major" "gitMinor=$minor" gitTreeState=clean \
        gitCommit=0000000 buildDate=1970-01-01T00:00:00Z; do
        linker_flags+=" -X $package.$value"
    done
done

# Everything that decides what the binary is: toolchain, flags, dependencies and our own sources.
key=$({
    echo "$go_version" "$GOFLAGS" "$linker_flags" "${programs[@]}"
    find . -type f \( -name go.mod -o -name go.sum -o -name '*.go' ! -name '*_test.go' -o -path './processruntime/*.sh' \) |
        LC_ALL=C sort | xargs sha256sum
} | sha256sum | cut -c1-16)

build() {
    local packages=$1/packages total program
    go list -deps . 2>&1 >"$packages" | show_progress "modules of Kubernetes" || return 1
    total=$(wc -l <"$packages")
    rm "$packages"
    echo "compiling up to $total packages; the linker, which comes last, says nothing for half a minute"
    go build -v -ldflags "$linker_flags" -o "$1/kubebin" . 2>&1 | show_progress "Kubernetes" "$total" || return 1
    for program in "${programs[@]}"; do
        ln -s kubebin "$1/$program"
    done
}

cached_build kube "$key" build
