# The driver is killed while a pod holds its context: nothing is lost, and nobody is taken for somebody else.

stop driver
start_driver driver "$DRIVER_ROOT"
check restart-driver-ready-again 20 driver_is_ready
restarted_at=$(now)
has_lost_nothing() {
    echo "$(phase a): $(uses_of a | on_one_line); CDI files: $(cdi_files); $(nothing_is_bypassed)"
    [ "$(now)" -gt $((restarted_at + 4000)) ] && runs a >/dev/null && [ -n "$(uses_of a)" ] &&
        is_anything_prepared && nothing_is_bypassed >/dev/null
}
check restart-nothing-is-lost 10 has_lost_nothing
