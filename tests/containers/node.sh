#!/usr/bin/env bash
# Boots a machine of the lab, and stays as its first process: node.sh DIRECTORY, as root, in the lab's namespaces.
#
# The machine has mounts, a network, processes, cgroups and a name of its own. Its root is that of the real machine
# with a layer over it, so that everything lies where it does on a node, and nothing is written to the real machine.
# One SIGKILL to the process that this script was started as is a loss of power: the kernel ends all the rest.
#
# DIRECTORY/address     its address, as 10.0.0.1/24; DIRECTORY/gateway, of its default route
# DIRECTORY/routes      further routes, a line each, as for `ip route add`
# DIRECTORY/cgroups     its cgroup in each hierarchy, a line each
# DIRECTORY/shown       directories of the real machine that it must see, a line each
# DIRECTORY/over        files that lie over the real machine's
# DIRECTORY/disk        what outlives a loss of power
# DIRECTORY/images      archives of images, a line each
# DIRECTORY/log         what its programs say
set -euo pipefail
directory=$1 name=$(basename "$1")

if [ "${2-}" != inside ]; then
    while read -r cgroup; do echo $$ >"$cgroup/cgroup.procs"; done <"$directory/cgroups"
    exec 9</proc/self/ns/net # The lab's network, for the other end of the cable.
    exec unshare --mount --net --pid --cgroup --uts --fork --kill-child bash "$0" "$directory" inside
fi

# ---- disks: the real root below, a layer in memory above it
root=$directory/root
# The lab's own process id of this script: what enters these namespaces goes by it.
read -r pid _ </proc/self/stat
echo "$pid" >"$directory/init.pid"
hostname "$name"
mount --make-rprivate /
mkdir -p "$directory/layer" "$root"
mount -t tmpfs layer "$directory/layer"
mkdir "$directory/layer/upper" "$directory/layer/work"
mount -t overlay root -o "lowerdir=/,upperdir=$directory/layer/upper,workdir=$directory/layer/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs run "$root/run"
mount -t tmpfs tmp "$root/tmp"
mount -t tmpfs cgroup "$root/sys/fs/cgroup"
# The root of each hierarchy is this machine's own cgroup.
while IFS=: read -r _ controllers path; do
    [ -n "$controllers" ] || continue
    at=$root/sys/fs/cgroup/${controllers#name=}
    mkdir "$at"
    case $controllers in
    name=*) mount -t cgroup -o "none,$controllers" cgroup "$at" ;;
    *) mount -t cgroup -o "$controllers" cgroup "$at" ;;
    esac
done </proc/self/cgroup
cp -a --remove-destination "$directory/over/." "$root/"
for own in containerd kubelet muster cni; do
    mkdir -p "$directory/disk/$own" "$root/var/lib/$own"
    mount --bind "$directory/disk/$own" "$root/var/lib/$own"
done
mkdir -p "$root/var/log"
mount --bind "$directory/log" "$root/var/log"
while read -r shown; do
    mkdir -p "$root$shown"
    mount --bind "$shown" "$root$shown"
done <"$directory/shown"
# The kubelet sets these for the whole machine. It gets files of its own instead.
for sysctl in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    own=$directory/sysctl/${sysctl//\//.}
    mkdir -p "$directory/sysctl"
    cat "/proc/sys/$sysctl" >"$own"
    mount --bind "$own" "$root/proc/sys/$sysctl"
done
cd "$root"
mkdir -p .real
pivot_root . .real
umount -l .real
rmdir .real
mount --make-rshared / # As on a machine, so that a pod may show mounts to others.
mkdir -p /run/containerd /etc/cni

# ---- network: a cable to the lab's bridge
ip link set lo up
ip link add eth0 type veth peer name "v-$name" netns /proc/self/fd/9
nsenter --net=/proc/self/fd/9 ip link set "v-$name" master br0 up
exec 9<&-
ip addr add "$(cat "$directory/address")" dev eth0
ip link set eth0 up
ip route add default via "$(cat "$directory/gateway")"
while read -r route; do
    # shellcheck disable=SC2086
    ip route add $route
done <"$directory/routes"
sysctl -qw net.ipv4.ip_forward=1
# For a Service whose pod is on the same bridge as who calls it.
sysctl -qw net.bridge.bridge-nf-call-iptables=1 || echo "$name: no br_netfilter"

# ---- programs
cd /
socket=/run/containerd/containerd.sock
containerd --config /etc/containerd/config.toml >>"$directory/log/containerd.log" 2>&1 &
until ctr --address "$socket" version >/dev/null 2>&1; do sleep 0.05; done
while read -r image; do
    ctr --address "$socket" --namespace k8s.io images import --local "$image" >>"$directory/log/images.log" 2>&1
done <"$directory/images"
kubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override="$name" \
    --node-ip="$(cut -d/ -f1 "$directory/address")" --cert-dir=/var/lib/kubelet/pki --v=2 >>"$directory/log/kubelet.log" 2>&1 &
kube-proxy --config=/etc/kubernetes/kube-proxy.yaml >>"$directory/log/kube-proxy.log" 2>&1 &
echo "$name: booted"
# A process that loses its parent comes to this one, and is buried by `wait`.
while :; do
    sleep 1000000 &
    wait $! || true
done
