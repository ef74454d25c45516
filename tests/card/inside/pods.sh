# Pods, with a claim of all GPUs of the node or without one, and what is seen of them. What Muster's controller does is done by hand: a
# permit for each pod on the node, acknowledged; then the gate goes.

# What is there of a GPU, each part under a heading.
look='echo "== devices"; ls -l /dev | grep nvidia; ls -l /dev/nvidia-caps 2>/dev/null
echo "== env"; env | grep -E "NVIDIA|MUSTER|CUDA"
echo "== mounts"; grep -E "nvidia|cuda" /proc/mounts
echo "== cache"; ldconfig -p | grep -E "libcuda|libnvidia-ml|libnvidia-ptx"
echo "== smi"; nvidia-smi -L; echo "nvidia-smi ends with $?"; nvidia-smi 2>&1 | head -40
echo "== context"'
# A context, until the pod goes.
hold='mkfifo /tmp/in; sleep 2000000 >/tmp/in & exec gpu --hold-a-context </tmp/in'

gated='  schedulingGates: [{name: card.example/gate}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: large-gpu}]'
claimed='    resources: {claims: [{name: gpu}]}'

# pod NAME SCRIPT [FURTHER-SPEC [FURTHER-CONTAINER]]
pod() {
    k create -f - <<Y
apiVersion: v1
kind: Pod
metadata: {name: "$1"}
spec:
  hostNetwork: true
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  enableServiceLinks: false
  tolerations: [{operator: Exists}]
${3-}
  containers:
  - name: c
    image: localhost/workload:1
    imagePullPolicy: Never
${4-}
    command:
    - /bin/sh
    - -c
    - |
$(sed 's/^ */      /' <<<"$2")
Y
}
# claim_pod NAME [SCRIPT]: looks, does that, and holds a context
claim_pod() {
    pod "$1" "$look
${2-}
$hold" "$gated" "$claimed"
}
delete() { k delete pod "$@" --wait=false >/dev/null; }

claim_of() { k get pod "$1" -o 'jsonpath={.status.resourceClaimStatuses[0].resourceClaimName}'; }
has_claim() { [ -n "$(claim_of "$1")" ]; }

# permit NAME: beside those of all pods so far
permit() {
    local pod claim
    pod=$(k get pod "$1" -o 'jsonpath={.metadata.uid}')
    claim=$(claim_of "$1")
    [ -n "$claim" ] || { echo "pod $1 has no claim yet"; return 1; }
    claim=$(k get resourceclaim "$claim" -o 'jsonpath={.metadata.uid}')
    [ -n "$claim" ] || return 1
    echo "$pod" >"uid.$1"
    cat >"permit.$1" <<J
{"podUid":"$pod","claimUids":["$claim"],"gang":"default/$1","gangUid":"$pod","attempt":1,"team":"card","charge":{"claims":[{"flavor":"card","gpusMilli":$((COUNT * 1000)),"vramBytes":$((COUNT << 38)),"uids":["$claim"]}]}}
J
    k patch nodedevices card --type=merge -p "{\"spec\":{\"permits\":[$(cat permit.* | paste -sd, -)]}}"
}
ungate() { k patch pod "$1" --type=json -p '[{"op":"remove","path":"/spec/schedulingGates"}]'; }
admit() {
    check "pod-$1-permitted" 20 permit "$1" && check "pod-$1-permit-acknowledged" 10 acknowledged && ungate "$1" >/dev/null
}

log() { cat /var/log/pods/default_"$1"_*/c/*.log 2>/dev/null | sed -E 's/^[^ ]+ std(out|err) [FP] //'; }
# in_log POD HEADING PATTERN...: what stands under the heading, and that each pattern is in it
in_log() {
    local part pattern
    part=$(log "$1" | sed -n "/^== $2/,/^== /p" | grep -v '^==')
    echo "$part"
    shift 2
    for pattern in "$@"; do
        grep -qE -- "$pattern" <<<"$part" || { echo "no $pattern"; return 1; }
    done
}
phase() { k get pod "$1" -o 'jsonpath={.status.phase} {.status.containerStatuses[0].state.waiting.reason}{.status.conditions[?(@.type=="PodScheduled")].message}' 2>&1; }
runs() { phase "$1" | show '^Running'; }
holds() {
    local said
    said=$(log "$1")
    echo "$(phase "$1"): $(tail -3 <<<"$said")"
    grep -qx holding <<<"$said"
}
waits_for_a_device() { phase "$1" | show 'allocate all claims'; }
is_gone() { k get pod "$1" -o name 2>&1 | show '[Nn]ot[ ]*[Ff]ound'; }
explain() { k describe pod "$1" | tail -8; tail -5 "logs/$DRIVER.log" | cut -c1-400; }

# Processes on the GPU that are in a pod's cgroup.
uses_of() {
    local process uid
    uid=$(cat "uid.$1")
    for process in $(uses); do
        tr -- - _ <"/proc/$process/cgroup" 2>/dev/null | grep -q "${uid//-/_}" && echo "$process"
    done
}
cdi_files() { find /run/cdi -type f -printf '%f\n' | on_one_line; }
is_anything_prepared() { compgen -G '/run/cdi/*claim*' >/dev/null; }
is_free() {
    local users
    users=$(uses | on_one_line)
    echo "on the GPU: ${users:-nobody}; CDI files: $(cdi_files)"
    [ -z "$users" ] && ! is_anything_prepared
}
# told PATTERN: in an Event about a bypass
told() {
    k get events.events.k8s.io -A -o 'jsonpath={range .items[?(@.reason=="QuotaBypassDetected")]}{.regarding.kind} {.regarding.name}: {.note}{"\n"}{end}' |
        show "$1"
}
