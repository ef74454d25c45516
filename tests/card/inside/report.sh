# What is told: a line for each check, with what was seen; and what is kept at the end.

now() { echo $(((${EPOCHREALTIME/./} - CARD_START) / 1000)); }

say() { printf '[%6.1f s] %s\n' "$(now | sed 's/...$/.&/')" "$*"; }

# on_one_line [LONGEST]: so that a check is a line
on_one_line() { tr '\n\t' '; ' | tr -s ' ' | cut -c1-"${1:-700}"; }

# Time is left to keep what was seen.
last_millisecond=$((CARD_LIMIT * 1000 - 12000))

# check NAME SECONDS COMMAND...: until the command succeeds; what it prints is what was seen
check() {
    local name=$1 end seen
    end=$(($(now) + $2 * 1000))
    [ "$end" -lt "$last_millisecond" ] || end=$last_millisecond
    shift 2
    while :; do
        if seen=$("$@" 2>&1); then
            say "check $name ... ok ($(on_one_line <<<"$seen"))"
            return 0
        fi
        if [ "$(now)" -ge "$end" ]; then
            say "check $name ... FAILED ($(on_one_line <<<"$seen"))"
            return 1
        fi
        sleep 0.2
    done
}

# show PATTERN: passes on what it reads, and fails unless a line fits
show() {
    local all
    all=$(cat)
    echo "$all"
    grep -q -- "$1" <<<"$all"
}

skip() { say "*** check $1 ... SKIPPED ($2)"; }

processes=()
# launch NAME COMMAND...: in the background, with a log
launch() {
    local name=$1
    shift
    "$@" >>"logs/$name.log" 2>&1 </dev/null &
    processes+=($!)
    echo $! >"$name.pid"
}

# stop NAME: as a crash would
stop() {
    local process
    process=$(cat "$1.pid")
    kill -9 "$process"
    wait "$process"
} 2>/dev/null

leave() {
    trap '' TERM INT
    say "keeping what was seen"
    k get resourceslices,resourceclaims,deviceclasses,nodedevices,nodes -A -o yaml >dump/objects.yaml 2>&1
    k get events -A -o wide --sort-by=.metadata.creationTimestamp >dump/events.txt 2>&1
    k get events.events.k8s.io -A -o yaml >dump/events.yaml 2>&1
    metrics >dump/metrics.txt 2>&1
    cp -r /var/log/pods dump/pods
    cp -rL /run/cdi dump/cdi
    cp -r /var/lib/muster dump/state
    [ -n "$CARD_MOCK" ] || { dmesg | tail -60 >dump/kernel.txt; "$(program_of_driver)" >dump/nvidia-smi.txt; }
    kill -9 "${processes[@]}"
    [ "$$" != 1 ] || kill -9 -1
    exit 0
} 2>/dev/null
