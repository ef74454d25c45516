# Muster's driver as the chart starts it, but that what it waits half a minute for elsewhere takes 3 s; and what it says.

# start_driver LOG ROOT
start_driver() {
    DRIVER=$1
    launch "$DRIVER" muster-dra-driver --kubeconfig=pki/driver.conf --node-name=card --admin-addr=127.0.0.1:8082 --log-format=text \
        --pod-resources-socket=/var/lib/kubelet/pod-resources/kubelet.sock --driver-root="$2" --hook-dir=/var/lib/muster-bin \
        --hook-program="$CARD_WORK/bin/muster-cdi-hook" --enforce-unless-told --unexplained-seconds=3 "${driver_flags[@]}"
}

# get PATH: what it answers; fails where that is no success
get() {
    local answer
    # shellcheck disable=SC2016
    answer=$(timeout 4 bash -c '
        exec 5<>/dev/tcp/127.0.0.1/8082
        printf "GET %s HTTP/1.1\r\nHost: card\r\nConnection: close\r\nAccept: text/plain\r\n\r\n" "$1" >&5
        cat <&5' get "$1" 2>&1)
    sed '1,/^\r*$/d' <<<"$answer"
    [[ $answer == HTTP/1.?\ 200* ]]
}
metrics() { get /metrics; }
# metric NAME: the sum of it
metric() { metrics | grep -E "^muster_driver_$1(\{| )" | awk '{sum += $NF} END {print sum + 0}'; }
driver_is_ready() { get /readyz; }

# A line for each device of the ResourceSlices.
devices() {
    k get resourceslices -o 'jsonpath={range .items[*].spec.devices[*]}{.name} {.attributes.productName.string} memory={.capacity.memory.value} uuid={.attributes.uuid.string} taints=[{.taints[*].key}]{"\n"}{end}'
}
are_listed() { devices | show 'memory=[0-9]'; }
untainted() { local all; all=$(devices); echo "$all"; [ -n "$all" ] && ! grep -q 'taints=\[..*\]' <<<"$all"; }
tainted() { devices | show "taints=\[[^]]*$1"; }
nothing_is_bypassed() {
    echo "bypassed_devices $(metric bypassed_devices), held_devices $(metric held_devices), gpus $(metric gpus); $(devices | head -1)"
    [ "$(metric bypassed_devices)" = 0 ] && untainted >/dev/null
}

# More than half of what the smallest GPU publishes, as a quantity: such a claim fits every card, and none twice.
more_than_half() {
    devices | sed -nE 's/.* memory=([0-9]+)(Ki|Mi|Gi|Ti|) .*/\1 \2/p' | awk '
        BEGIN {unit["Ki"] = 1024; unit["Mi"] = 1024 ^ 2; unit["Gi"] = 1024 ^ 3; unit["Ti"] = 1024 ^ 4; unit[""] = 1}
        {bytes = $1 * unit[$2]; if (NR == 1 || bytes < least) least = bytes}
        END {printf "%.0fKi\n", int(least / 2048) + 1}'
}

acknowledged() {
    local seen
    seen=$(k get nodedevices card -o 'jsonpath={.metadata.generation} {.status.observedGeneration} held=[{.status.held[*].name}]')
    echo "generation, acknowledged: $seen"
    # shellcheck disable=SC2086
    set -- $seen
    [ "$1" = "${2-}" ]
}

publish_gpus() {
    check resource-slice 30 are_listed || { tail -8 "logs/$DRIVER.log" | cut -c1-800; return 1; }
    k create -f - <<Y
{"apiVersion": "muster.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": "card"},
 "spec": {"nodeUid": "$(k get node card -o 'jsonpath={.metadata.uid}')", "leaderEpoch": 1, "enforce": true}}
Y
    check permits-acknowledged 20 acknowledged
    check driver-ready 30 driver_is_ready
    k get resourceslices -o yaml >dump/resourceslices-at-the-start.yaml
    COUNT=$(devices | grep -c .)
    k create -f - <<Y
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: large-gpu}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.muster.dev
          count: $COUNT
          selectors:
          - cel: {expression: "device.capacity['gpu.muster.dev'].memory.compareTo(quantity('$(more_than_half)')) >= 0"}
Y
}
