#!/usr/bin/env bash
# Packs card.sh and all that it needs into a directory, to be carried to a machine with a GPU: bash pack.sh DIR [TARGET]
#
# TARGET is where cargo has put Muster's programs (target/debug): `cargo build --package muster-dra-driver --package muster-cdi-hook` and
# `cargo test --package muster-device --test gpu --no-run`. The rest is built, once, by tests/controlplane, tests/containers and
# tests/helm. It needs root, because containerd makes its directory with the image in it; and openssl, binutils, python3 and xz.
#
# The certificates are good for 30 days. It takes minutes, nearly all of it for xz.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
output=$(mkdir -p "${1:?names the directory that it is packed into}" && cd "$1" && pwd)
target=$(cd "${2:-$repository/target/debug}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree"/{bin,lib}

echo "programs"
# shellcheck source=pack/programs.sh
. "$here/pack/programs.sh"
echo "image"
# shellcheck source=pack/image.sh
. "$here/pack/image.sh"
echo "certificates and objects"
bash "$here/pack/certificates.sh" "$tree/pki"
bash "$here/pack/objects.sh" "$tree/objects" "$repository"
cp -r "$here"/{inside.sh,inside,checks} "$tree/"

# xz finds again what is in the last 256 MiB: what is in the image, too, comes just before that.
echo "packing $(du -sm "$tree" | cut -f1) MiB"
(cd "$tree" && tar --owner=0 --group=0 -cf - bin/{kubebin,containerd,containerd-shim-runc-v2,runc,muster-dra-driver,muster-cdi-hook,gpu,busybox} \
    containerd-root.tar lib containerd.toml inside.sh inside checks pki objects) |
    xz --x86 --lzma2=preset=9e,dict=256MiB,lc=4,lp=0,pb=0 --memlimit-compress=0 -T1 >"$output/card.bundle.new"
mv "$output/card.bundle.new" "$output/card.bundle"
cp "$here/card.sh" "$output/card.sh"
ls -l "$output/card.sh" "$output/card.bundle"
