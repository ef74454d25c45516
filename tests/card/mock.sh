#!/usr/bin/env bash
# Makes what stands for a GPU where there is none, for a trial of all that is not the GPU: bash mock.sh DIR [TARGET]
#
#   CARD_MOCK=DIR bash DIR-OF-THE-BUNDLE/card.sh
#
# TARGET is where cargo has put the mock of NVML (target/debug). What uses the mock GPU is said by mock/inside.sh.
set -euo pipefail

repository=$(cd "$(dirname "$0")/../.." && pwd)
mock=$(mkdir -p "${1:?names the directory that is made}" && cd "$1" && pwd)
target=${2:-$repository/target/debug}
version=580.95.05
rm -rf "$mock"
libraries=$mock/driver-root/lib64
mkdir -p "$libraries" "$mock/driver-root/bin" "$mock/proc/driver/nvidia"
cp "$repository/tests/card/mock/inside.sh" "$mock/"

# library NAME SONAME: a link beside it where the names differ
link() {
    [ -e "$libraries/$2" ] || ln -s "$1.$version" "$libraries/$2"
}
cp "$target/deps/libnvidia_ml_mock.so" "$libraries/libnvidia-ml.so.$version"
link libnvidia-ml.so libnvidia-ml.so.1
cat "$repository/tests/containers/gpu/libcuda.c" "$repository/tests/card/mock/libcuda.c" >"$mock/libcuda.c"
cc -O1 -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$libraries/libcuda.so.$version" "$mock/libcuda.c"
link libcuda.so libcuda.so.1
for library in libnvidia-ptxjitcompiler.so:1 libnvidia-nvvm.so:4 libnvidia-gpucomp.so:$version; do
    name=${library%:*} soname=${library/:/.}
    cc -shared -fPIC -Wl,-soname,"$soname" -x c -o "$libraries/$name.$version" /dev/null
    link "$name" "$soname"
done
cc -O1 -o "$mock/driver-root/bin/nvidia-smi" "$repository/tests/containers/gpu/nvidia-smi.c"

# Major numbers that nobody has here: what is made of them opens nothing.
major=384
while grep -qE "^ *($major|$((major + 1))) " /proc/devices; do major=$((major + 1)); done
printf 'Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n%s nvidia-caps\n%s nvidia-uvm\n\nBlock devices:\n' \
    $((major + 1)) "$major" >"$mock/proc/devices"
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  $version  Sun Jul 27 07:17:54 UTC 2025" >"$mock/proc/driver/nvidia/version"
echo '{"board":"h200-nvswitch-8","seed":"card","processes":[],"events":[]}' >"$mock/board.json"
