#!/usr/bin/env bash
# Builds what runs real containers in the tests, and prints the directory it is in: containerd with its
# runc shim and ctr, and CoreDNS. MUSTER_CONTAINER_BIN=DIR names ready-made programs instead.
#
# runc, the CNI plugins, nft and a static busybox are the distribution's: they link to C libraries. What
# is missing of them is installed where this runs as root and there is apt-get; else they are named.
# Debian's own containerd is too old: it resolves no CDI ids.
# See ../controlplane/cached-build.sh for where the cache is.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../controlplane/cached-build.sh"

containerd=v2.4.2
programs=(containerd containerd-shim-runc-v2 ctr coredns)
declare -A packages=(
    [/usr/sbin/runc]=runc
    [/usr/lib/cni/bridge]=containernetworking-plugins
    [/usr/sbin/nft]=nftables
    [/usr/bin/busybox]=busybox-static
    [/usr/sbin/ip]=iproute2
    [/usr/sbin/sysctl]=procps
)

install_packages() {
    local file missing=()
    for file in "${!packages[@]}"; do
        [ -e "$file" ] || missing+=("${packages[$file]}")
    done
    ((${#missing[@]})) || return 0
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "needs the packages ${missing[*]} of Debian 12 or newer: install them (as root, where there is apt-get, this does it itself)"
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # Lists that are out of date name packages that are gone.
    apt-get install -y -qq "${missing[@]}" >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq "${missing[@]}" >/dev/null; } ||
        fail "apt-get could not install ${missing[*]}"
}

install_packages
use_ready_made MUSTER_CONTAINER_BIN "${programs[@]}"
require_tools "containerd for the tests" MUSTER_CONTAINER_BIN
cd "$(dirname "$0")"

key=$({
    echo "$containerd" "$go_version" "$GOFLAGS"
    sha256sum coredns/go.mod coredns/go.sum coredns/main.go
} | sha256sum | cut -c1-16)

build() {
    (cd coredns && go build -v -ldflags "-s -w" -o "$1/coredns" .) 2>&1 | show_progress CoreDNS || return 1
    # `go install PACKAGE@VERSION` ignores every module around it, and is pinned by the checksum database.
    GOFLAGS='-trimpath -buildvcs=false' GOBIN=$1 go install -v -ldflags "-s -w" \
        "github.com/containerd/containerd/v2/cmd/"{containerd,containerd-shim-runc-v2,ctr}"@$containerd" 2>&1 |
        show_progress containerd || return 1
}

cached_build containers "$key" build
