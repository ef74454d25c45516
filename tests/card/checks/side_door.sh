# A privileged pod without a claim takes the GPU: it is named.

pod thief "[ -e /dev/nvidiactl ] || { $make_nodes; }
$bring_driver
$hold" "$driver_volume" "    securityContext: {privileged: true}
$driver_mount"
check side-door-pod-has-a-context 20 holds thief
check side-door-pod-is-named 15 told '^Pod thief'
check side-door-device-is-tainted 10 tainted gpu.muster.dev/bypassed
delete thief
check side-door-taint-goes-with-the-pod 20 untainted
