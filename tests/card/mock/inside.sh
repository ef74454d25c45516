# A machine whose GPUs are the mock's: who runs the program `gpu` uses the first one, and what makes a fault is told of.

start_mock() {
    export MUSTER_NVML_MOCK_STATE=$CARD_WORK/board.json
    SMI_SAYS='NVML is there'
    PROC=$CARD_WORK/proc
    mkdir -p "$PROC"
    cp -r "$CARD_MOCK/proc/." "$PROC/"
    cp "$CARD_MOCK/board.json" board.json
    : >kernel.log
    driver_flags=(--proc-dir="$PROC" --kernel-log="$CARD_WORK/kernel.log")
    watch_processes >logs/mock.log 2>&1 &
    processes+=($!)
}

mock_uses() { jq -r '.processes[].pid' board.json; }

mock_outsider() {
    bash -c "exec -a $CARD_WORK/bin/gpu-outsider sleep 1000" &
    echo holding >logs/outsider.log
}

mock_uuid() { devices | sed -nE '1s/.* uuid=([^ ]+) .*/\1/p'; }

watch_processes() {
    local directory command users process before='' faults='' gpu=''
    while sleep 0.3; do
        users=
        for directory in /proc/[0-9]*; do
            command=$(tr '\0' ' ' <"$directory/cmdline" 2>/dev/null)
            process=${directory#/proc/}
            case $command in
            'gpu --hold-a-context ' | "$CARD_WORK/bin/gpu-outsider "*) users+="$process " ;;
            'gpu --make-a-fault ')
                [[ " $faults " == *" $process "* ]] || { faults+=" $process" && mock_fault; }
                ;;
            esac
        done
        [ "$users" != "$before" ] || continue
        gpu=${gpu:-$(mock_uuid)}
        find "$PROC" -maxdepth 1 -type l -exec rm {} +
        for process in $users; do ln -sfn "/proc/$process" "$PROC/$process"; done
        change_board --arg gpu "$gpu" --arg users "$users" \
            '.processes = [$users | split(" ")[] | select(. != "") | {gpu: $gpu, pid: tonumber, usedBytes: 1073741824}]'
        before=$users
    done
}

# NVML tells it, and the kernel's log: the first GPU of the board is at this address.
mock_fault() {
    gpu=${gpu:-$(mock_uuid)}
    echo "4,$(wc -l <kernel.log),1,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=gpu, MMU Fault" >>kernel.log
    change_board --arg gpu "$gpu" \
        '.events += [{sequence: (.nextEvent // 0), gpu: $gpu, kind: 8, data: 31}] | .nextEvent = (.nextEvent // 0) + 1'
}

change_board() { jq "$@" board.json >board.new && mv board.new board.json; }
