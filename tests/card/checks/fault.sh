# A process makes a fault of its own: a real XID. It is told once, as an application's, of this GPU, and keeps nothing off it.

pod faulty 'gpu --make-a-fault </dev/null; echo "it ends with $?"; exec sleep 2000000' "$gated" "$claimed"
admit faulty
makes_a_fault() { log faulty | show '^faulted [1-9]' && log faulty | grep -q '^it ends with 0'; }
check fault-is-made 40 makes_a_fault || explain faulty

# The driver's words, without what a terminal would colour.
driver_says() { sed 's/\x1b\[[0-9;]*m//g' "logs/$DRIVER.log" | grep "$1"; }
in_the_kernels_log() { dmesg | grep 'NVRM: Xid' | show 'Xid (PCI:'; }
if [ -n "$CARD_MOCK" ]; then skip fault-is-in-the-kernels-log 'there is no GPU'; else check fault-is-in-the-kernels-log 10 in_the_kernels_log; fi
is_told() { driver_says 'anomaly of a GPU' | show 'class=App.*cause=XID'; }
check fault-is-told 15 is_told
told_at=$(now)
# NVML and the kernel's log both tell it. After a while it is still one.
is_told_once() {
    [ "$(now)" -gt $((told_at + 2000)) ] || return 1
    driver_says 'anomaly of a GPU'
    [ "$(driver_says 'anomaly of a GPU' | grep -c 'class=App')" = 1 ] && ! driver_says 'a fault of a GPU'
}
check fault-is-told-once 5 is_told_once
UUID=$(devices | sed -nE '1s/.* uuid=([^ ]+) .*/\1/p')
is_attributed_to_the_gpu() {
    local all own
    all=$(cat /var/lib/muster/faults.json)
    own=$(grep -oE "\"$UUID\":\{\"faults\":\[[^]]*\]" <<<"$all")
    echo "$own"
    grep -q '"class":"App"' <<<"$own" && grep -q '"waiting":{}' <<<"$all" && ! grep -q '"class":' <<<"${all/"$own"/}"
}
check fault-is-of-the-gpu 5 is_attributed_to_the_gpu
is_counted() {
    metrics | grep '^muster_driver_faulty_gpus' | grep -v ' 0$'
    [ "$(metrics | grep '^muster_driver_faulty_gpus{class="App"}' | awk '{print $2}')" = 1 ] &&
        [ "$(metrics | grep '^muster_driver_faulty_gpus' | grep -vE '"(App|Info)"' | awk '{sum += $2} END {print sum}')" = 0 ]
}
check fault-is-counted 5 is_counted
check fault-taints-nothing 5 untainted

claim_pod next
delete faulty
admit next
check fault-next-pod-has-a-context 40 holds next || explain next
delete next
check fault-gpu-is-free 20 is_free
