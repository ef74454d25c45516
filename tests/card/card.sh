#!/usr/bin/env bash
# A whole small cluster of real parts around the GPU of this machine, and what has to be so in it: bash card.sh
#
# Everything comes from card.bundle beside this (pack.sh makes it); the machine brings a kernel, NVIDIA's driver, bash and the usual
# tools. It needs root and no network, and changes nothing of the hardware. What a node writes is in mounts of its own, which go
# with it. A machine that is a node already is no place for it: it would see the pods of two kubelets.
#
# OUT=DIR             where results go: summary.txt (the checks) and details.tar.gz (logs, objects, metrics); /tmp/card-out
# CARD_LIMIT=SECONDS  longest time; 180
# CARD_DRIVER_ROOT=DIR  where NVIDIA's driver is; else the usual directories are tried
# CARD_MOCK=DIR       what stands for a GPU where there is none (mock.sh makes it)
set -u

export CARD_WORK=/tmp/muster-card-run CARD_LIMIT=${CARD_LIMIT:-180} CARD_MOCK=${CARD_MOCK-} CARD_CGROUP=card-$$
export CARD_START=${EPOCHREALTIME/./} CARD_DRIVER_ROOT=${CARD_DRIVER_ROOT-}
OUT=${OUT:-/tmp/card-out}
here=$(cd "$(dirname "$0")" && pwd)

milliseconds() { echo $(((${EPOCHREALTIME/./} - CARD_START) / 1000)); }

unpack() {
    rm -rf "$CARD_WORK"
    mkdir -p "$OUT" "$CARD_WORK"/{logs,dump}
    [ -e "$here/card.bundle" ] || { echo "there is no $here/card.bundle: pack.sh makes it"; return 1; }
    xz -dc "$here/card.bundle" | tar -C "$CARD_WORK" -x --no-same-owner || return 1
    chmod 755 "$CARD_WORK"/bin/*
    local program
    for program in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
        ln -sf kubebin "$CARD_WORK/bin/$program"
    done
    echo "unpacked after $(milliseconds) ms: $(du -sm "$CARD_WORK" | cut -f1) MiB"
}

# What the inner part could not end itself: only programs of our directory, and what is in our pods' cgroups.
end_all() {
    local left process
    for _ in 1 2 3; do
        left=0
        for process in $(find /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/"$CARD_CGROUP" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u); do
            kill -9 "$process" 2>/dev/null && left=1
        done
        for process in /proc/[0-9]*; do
            case $(readlink "$process/exe") in
            "$CARD_WORK"/bin/*) kill -9 "${process#/proc/}" 2>/dev/null && left=1 ;;
            esac
        done
        [ $left = 1 ] || break
        sleep 0.5
    done
    find /sys/fs/cgroup/*/"$CARD_CGROUP" -depth -type d -exec rmdir {} \; 2>/dev/null
    [ -n "$CARD_MOCK" ] || find /sys/fs/cgroup/kubepods -depth -type d -exec rmdir {} \; 2>/dev/null
}

unpack || { echo "check unpack ... FAILED"; exit 1; }
# Without a GPU this is a trial on a machine that may have kubelets of its own: there processes get a namespace, too.
namespaces=(--mount --net)
[ -z "$CARD_MOCK" ] || namespaces+=(--pid --fork --kill-child --mount-proc)
timeout -k 8 "$CARD_LIMIT" unshare "${namespaces[@]}" bash "$CARD_WORK/inside.sh" 2>&1 | tee "$OUT/summary.txt"
end_all
cp -r "$CARD_WORK/logs" "$CARD_WORK/dump/"
find "$CARD_WORK/dump" -type f -size +12M -exec truncate -s 12M {} \;
tar -C "$CARD_WORK" -czf "$OUT/details.tar.gz" dump
ok=$(grep -c '^\[.* check .* ok ' "$OUT/summary.txt")
failed=$(grep -c '^\[.* check .* FAILED ' "$OUT/summary.txt")
echo "card: $ok ok, $failed failed, in $(($(milliseconds) / 1000)) s; $OUT"
# An end that is not reached is none.
[ "$failed" = 0 ] && grep -q '^\[.* done$' "$OUT/summary.txt"
