# A pod with a claim has the GPU, the driver, and nothing else, and nothing is taken amiss.

check service-account 20 k get serviceaccount default -o name
claim_pod a
pod plain "$look
gpu --hold-a-context </dev/null; echo \"it ends with \$?\""
admit a
check claim-pod-has-a-context 40 holds a || explain a
check claim-device-nodes 5 in_log a devices 'nvidia0$' 'nvidiactl$' 'nvidia-uvm$' 'nvidia-uvm-tools$'
check claim-loader-cache 5 in_log a cache 'libcuda\.so\.1 .*=>' 'libnvidia-ml\.so\.1 .*=>'
check claim-nvidia-smi 5 in_log a smi "${SMI_SAYS:-GPU 0: NVIDIA}" 'nvidia-smi ends with 0'

is_allocated() { k get resourceclaims -o 'jsonpath={range .items[*]}{.metadata.name}: {.status.allocation.devices.results[*].device}, reserved for {.status.reservedFor[*].name}{"\n"}{end}' | show ': gpu-.* for a$'; }
check claim-is-allocated 5 is_allocated

is_attributed() {
    local own
    own=$(uses_of a)
    echo "on the GPU: $(uses | on_one_line), of pod a: $(on_one_line <<<"$own")"
    [ -n "$own" ] && [ "$(uses)" = "$own" ]
}
check claim-process-is-in-the-pods-cgroup 10 is_attributed
attributed_at=$(now)
log a >dump/pod-a.txt
cp -rL /run/cdi dump/cdi-while-a-runs
metrics >dump/metrics-while-a-runs.txt
k get resourceclaims -o yaml >dump/claims-while-a-runs.yaml
cat "/proc/$(uses_of a | head -1)/cgroup" >dump/cgroup-of-a.txt
