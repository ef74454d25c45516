# The GPU, and who uses it as NVIDIA's own tools say.

find_gpu() {
    driver_flags=()
    PROC=/proc
    if [ -n "$CARD_MOCK" ]; then
        DRIVER_ROOT=$CARD_MOCK/driver-root
        # shellcheck source=mock/inside.sh
        . "$CARD_MOCK/inside.sh"
        start_mock
    else
        DRIVER_ROOT=
        local directory
        for directory in "${CARD_DRIVER_ROOT:-/usr/local/nvidia}" /usr/local/nvidia /run/nvidia/driver ''; do
            has_driver "$directory" && DRIVER_ROOT=$directory && break
        done
        [ -n "$DRIVER_ROOT" ] || DRIVER_ROOT=/
        "$(program_of_driver)" -L
    fi
    say "driver root $DRIVER_ROOT, cgroups $(stat -fc %T /sys/fs/cgroup), kernel $(uname -r | cut -d. -f1,2)"
}

has_driver() {
    local libraries
    for libraries in lib64 usr/lib64 usr/lib/x86_64-linux-gnu; do
        [ ! -e "$1/$libraries/libcuda.so.1" ] || return 0
    done
    return 1
}

program_of_driver() {
    local directory
    for directory in "$DRIVER_ROOT/bin" "$DRIVER_ROOT/usr/bin"; do
        [ ! -x "$directory/nvidia-smi" ] || { echo "$directory/nvidia-smi"; return; }
    done
    command -v nvidia-smi
}

# Process ids, one a line.
uses() {
    if [ -n "$CARD_MOCK" ]; then
        mock_uses
    else
        "$(program_of_driver)" --query-compute-apps=pid --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+$'
    fi
}
