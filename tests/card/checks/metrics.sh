# What is counted, at the end of all of it.

counts() {
    local all
    all=$(metrics | grep -E '^muster_driver_(claims|bypass|gpus|nvml|held|unresp|faulty|slice|device)' | sed 's/^muster_driver_//')
    echo "$all"
    grep -q "^gpus $COUNT$" <<<"$all" && grep -q '^nvml_open 1$' <<<"$all" && grep -q '^device_overlap_rejected_total 0$' <<<"$all"
}
check metrics 5 counts
