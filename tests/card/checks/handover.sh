# From one pod to the next: a goes, c comes; then c is deleted by force while it computes, and d comes. Never two at once.

first=$(uses_of a | head -1)
second=
# watch PROCESS POD: every 0.1 s whether the one is there, and what the other says
watch() {
    while :; do
        printf '%s process=%s next=%s\n' "$(now)" "$([ -d "/proc/${1:-none}" ] && echo there || echo gone)" "$(log "$2" | tail -1)"
        sleep 0.1
    done
}
never_both() {
    local both
    both=$(grep 'process=there next=.' "$1" | head -2)
    echo "gone: $(grep -m1 =gone "$1"); next: $(grep -m1 'next=.' "$1"); both: ${both:-never}"
    [ -z "$both" ] && grep -q =gone "$1" && grep -q 'next=.' "$1"
}

watch "$first" c >dump/handover.txt & watcher=$!
processes+=("$watcher")
delete a
check handover-next-pod-runs 40 holds c || explain c
kill $watcher
check handover-never-two-on-the-gpu 1 never_both dump/handover.txt
check handover-first-pod-is-gone 10 is_gone a

second=$(uses_of c | head -1)
claim_pod d
admit d
say "pod c is deleted by force; its process is ${second:-not seen}"
watch "$second" d >dump/forced.txt & watcher=$!
processes+=("$watcher")
k delete pod c --force --grace-period=0 --wait=false >/dev/null 2>&1
check forced-next-pod-runs 40 holds d || explain d
kill $watcher
check forced-never-two-on-the-gpu 1 never_both dump/forced.txt
delete d
check handover-gpu-is-free 20 is_free
