# Without a permit nothing is prepared; the call waits for one.

claim_pod f
check permit-pod-has-a-claim 10 has_claim f
ungate f >/dev/null
is_bound() { k get pod f -o 'jsonpath={.spec.nodeName} {.status.phase}' | show '^card'; }
check permit-pod-is-bound 10 is_bound
bound_at=$(now)
is_unprepared() {
    echo "$(phase f); CDI files: $(cdi_files)"
    [[ $(phase f) == Pending* ]] && ! is_anything_prepared && [ -z "$(uses)" ]
}
stays_unprepared() { is_unprepared && [ "$(now)" -gt $((bound_at + 3000)) ]; }
check permit-nothing-is-prepared-without 6 stays_unprepared
permit f >/dev/null
check permit-pod-runs-with-one 10 holds f || explain f
delete f
check permit-gpu-is-free 20 is_free
