# A process that is in no pod takes the GPU: the device is tainted, which is told, and a pod waits for its end.

# Who is in none can be told only where there are pods.
pod bystander 'sleep 2000000'
check bypass-bystander-runs 15 runs bystander
mkfifo outsider.in
exec 7<>outsider.in
if [ -n "$CARD_MOCK" ]; then mock_outsider; else gpu --hold-a-context <outsider.in >logs/outsider.log 2>&1 7>&- & fi
outsider=$!
processes+=("$outsider")
outsider_holds() {
    echo "process $outsider says $(cat logs/outsider.log); on the GPU: $(uses | on_one_line)"
    grep -qx holding logs/outsider.log && uses | grep -qx "$outsider"
}
check bypass-outsider-is-on-the-gpu 20 outsider_holds
check bypass-device-is-tainted 15 tainted gpu.muster.dev/bypassed
k get resourceslices -o yaml >dump/resourceslices-tainted.yaml
check bypass-is-told 10 told '^Node card'

# The test suite for GPUs, from within a container.
suite='echo "== suite"; MUSTER_GPU_RECORD=/tmp/recorded timeout 60 gpu; echo "the suite ends with $?"; echo "== recorded"; cat /tmp/recorded/*
echo "== context"'
[ -z "$CARD_MOCK" ] || suite=
claim_pod e "$suite"
admit e
check bypass-pod-waits-for-the-tainted-device 10 waits_for_a_device e
{ kill -9 $outsider; wait $outsider; } 2>/dev/null
check bypass-taint-goes-with-the-process 20 untainted
check bypass-pod-runs-then 80 holds e || explain e
if [ -n "$CARD_MOCK" ]; then skip suite-in-the-container 'there is no GPU'; else check suite-in-the-container 1 in_log e suite 'the suite ends with 0'; fi
log e >dump/pod-e.txt
delete e bystander
check bypass-gpu-is-free 20 is_free
