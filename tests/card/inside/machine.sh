# The machine: places of its own for what a node writes. Nothing of it outlives this process.

prepare_machine() {
    local directory setting file
    mount --make-rshared /
    for directory in /run /var/lib /var/log; do mount -t tmpfs tmpfs "$directory"; done
    mkdir -p /run/cdi /run/containerd /run/lock /var/lib/cni/{bin,net.d} /var/lib/kubelet /var/lib/muster /var/log/pods sysctl
    # The kubelet sets these for the whole machine: it gets files.
    for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_max{keys,bytes}; do
        [ -e "/proc/sys/$setting" ] || continue
        file=sysctl/${setting//\//.}
        cat "/proc/sys/$setting" >"$file"
        mount --bind "$file" "/proc/sys/$setting"
    done
    # runc is linked to libseccomp, and not every machine has it. It starts itself anew without variables: the loader has to know it.
    if ! ldconfig -p | grep -q 'libseccomp.so.2 .*x86-64'; then
        ldconfig -X -C "$CARD_WORK/ld.so.cache" "$CARD_WORK/lib" && mount --bind ld.so.cache /etc/ld.so.cache
        say "libseccomp.so.2 is not there: the loader is told of ours"
    fi
    busybox ip link set lo up
    busybox ip addr add 10.90.0.1/32 dev lo
    # Never used, but the runtime is not ready without one: all pods are on the node's network.
    cat >/var/lib/cni/net.d/10-none.conflist <<'J'
{"cniVersion":"1.0.0","name":"none","plugins":[{"type":"bridge","bridge":"none0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.91.0.0/24"}]]}}]}
J
    CGROUP_ROOT=/
    [ -z "$CARD_MOCK" ] || own_cgroups
}

# Hierarchies of version 1, shared with whoever else is on the machine.
own_cgroups() {
    local hierarchy file
    CGROUP_ROOT=/$CARD_CGROUP
    for hierarchy in /sys/fs/cgroup/*/; do
        [ -e "$hierarchy/tasks" ] || continue
        mkdir -p "$hierarchy/$CARD_CGROUP"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" >"$hierarchy/$CARD_CGROUP/$file"
        done
    done
}
