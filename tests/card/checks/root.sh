# The machine's own root as the driver root: the driver is found where the machine's loader is told of it, and a pod has it.

if [ -n "$CARD_MOCK" ]; then
    skip driver-of-root 'there is no GPU'
else
    stop driver
    start_driver driver-of-root /
    is_found() { sed 's/\x1b\[[0-9;]*m//g' "logs/$DRIVER.log" | grep -E 'driver that containers get|before this is mended' | show 'version='; }
    check driver-of-root-is-found 15 is_found
    check driver-of-root-is-ready 20 driver_is_ready
    claim_pod z
    admit z
    check driver-of-root-pod-has-a-context 40 holds z || explain z
    log z >dump/pod-z.txt
fi
