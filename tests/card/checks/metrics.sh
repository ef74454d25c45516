# What is counted, at the end of all of it.

counts() {
    local all
    all=$(metrics | grep -E '^muster_driver_(claims|bypass|gpus|nvml|held|unresp|faulty|slice|device)' | sed 's/^muster_driver_//')
    echo "$all"
    grep -q "^gpus $COUNT$" <<<"$all" && grep -q '^nvml_open 1$' <<<"$all" && grep -q '^device_overlap_rejected_total 0$' <<<"$all"
}
check metrics 5 counts

# NVML and the kernel's log have told the fault: how often is written down every 30 s.
was_told_by_both() {
    local causes
    causes=$(grep -oE "\"$UUID\":\{\"faults\":\[[^]]*\]" /var/lib/muster/faults.json | grep -oE '"XID (31|13)":[0-9]+')
    echo "$causes"
    [ "$(awk -F: '{sum += $2} END {print sum + 0}' <<<"$causes")" -ge 2 ]
}
check fault-was-told-by-both 35 was_told_by_both
