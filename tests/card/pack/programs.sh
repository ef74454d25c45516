# Sourced by pack.sh: the programs, without what only a debugger needs.

kubernetes=$(bash "$repository/tests/controlplane/build.sh")
containers=$(bash "$repository/tests/containers/build.sh")

# Rust and C, of which the name may be another; Go.
strip_to_bin() { strip --strip-all -o "$tree/bin/$(basename "${2:-$1}")" "$1"; }
blank_to_bin() { python3 "$here/pack/blank.py" "$1" "$tree/bin/$(basename "$1")"; }

suite=$(find "$target/deps" -maxdepth 1 -type f -name 'gpu-*' -executable -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
for program in "$target/muster-dra-driver" "$target/muster-cdi-hook" "${suite:-$target/deps/gpu-*}"; do
    [ -x "$program" ] || { echo "there is no $program: build it, see above in pack.sh"; exit 1; }
done
strip_to_bin "$target/muster-dra-driver"
strip_to_bin "$target/muster-cdi-hook"
strip_to_bin "$suite" gpu
blank_to_bin "$kubernetes/kubebin"
blank_to_bin "$containers/containerd"
blank_to_bin "$containers/containerd-shim-runc-v2"
# The distribution's: Go and C.
strip --strip-all -o "$work/runc" "$(command -v runc || echo /usr/sbin/runc)"
blank_to_bin "$work/runc"
cp /usr/bin/busybox "$tree/bin/"
cp -L "$(ldconfig -p | sed -nE 's/.*libseccomp\.so\.2 .*x86-64.* => (.*)/\1/p' | head -1)" "$tree/lib/libseccomp.so.2"
