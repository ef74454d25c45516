# A pod without a claim has no GPU; neither has one that brings the driver and makes device nodes itself: its cgroup forbids them.

UVM=$(awk '$2 == "nvidia-uvm" {print $1}' "$PROC/devices")
make_nodes="mknod -m 666 /dev/nvidia0 c 195 0; mknod -m 666 /dev/nvidiactl c 195 255
mknod -m 666 /dev/nvidia-uvm c $UVM 0; mknod -m 666 /dev/nvidia-uvm-tools c $UVM 1"
bring_driver='mkdir /tmp/driver
for directory in lib64 usr/lib64 usr/lib/x86_64-linux-gnu; do
    ln -s /driver/$directory/libcuda.so* /driver/$directory/libnvidia* /tmp/driver/ 2>/dev/null
done
export LD_LIBRARY_PATH=/tmp/driver PATH=/driver/bin:$PATH:/driver/usr/bin'
driver_volume="  volumes: [{name: driver, hostPath: {path: $DRIVER_ROOT}}]"
driver_mount='    volumeMounts: [{name: driver, mountPath: /driver, readOnly: true}]'

pod smuggler "$make_nodes
$bring_driver
ls -l /dev | grep nvidia
echo \"== context\"
gpu --hold-a-context </dev/null; echo \"it ends with \$?\"; nvidia-smi -L; echo \"nvidia-smi ends with \$?\"" \
    "$driver_volume" "$driver_mount"

has_no_gpu() {
    local said
    said=$(log "$1")
    sed -n '/^== context/,$p' <<<"$said"
    grep -q 'it ends with [1-9]' <<<"$said" && ! grep -qx holding <<<"$said"
}
has_no_nodes() { has_no_gpu plain && ! in_log plain devices | grep nvidia; }
check no-claim-no-gpu 20 has_no_nodes
check no-claim-but-device-nodes-of-its-own-no-gpu 20 has_no_gpu smuggler

# A second claim waits for the first.
claim_pod c
admit c
is_not_taken_amiss() { [ "$(now)" -gt $((attributed_at + 4500)) ] && nothing_is_bypassed; }
check claim-process-taints-nothing 10 is_not_taken_amiss
check second-claim-waits 10 waits_for_a_device c
