# In namespaces of its own, with containerd's programs on the PATH: imports an image, and packs containerd's directory.
# bash import.sh IMAGE TREE
set -euo pipefail

image=$1 tree=$2 socket=/run/containerd/containerd.sock
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /run/containerd /var/lib/cni/net.d
containerd --config "$tree/containerd.toml" >"$tree/../import.log" 2>&1 &
daemon=$!
for _ in $(seq 100); do
    ! ctr -a $socket version >/dev/null 2>&1 || break
    sleep 0.2
done
ctr -a $socket -n k8s.io images import --local "$image" >/dev/null || { tail -5 "$tree/../import.log"; exit 1; }
kill $daemon
wait $daemon || true
rm -rf /var/lib/containerd/tmpmounts/*
tar -C /var/lib -cf "$tree/containerd-root.tar" containerd
