# The node: containerd with runc, and the kubelet.

condition() { k get node card -o "jsonpath={.status.conditions[?(@.type=='$1')].status} {.status.conditions[?(@.type=='$1')].message}"; }

node_is_ready() {
    local ready
    ready=$(condition Ready)
    echo "$ready $(k get node card -o 'jsonpath={.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion}')"
    [[ $ready == True* ]]
}

start_kubelet() {
    tar -C /var/lib -xf containerd-root.tar
    launch containerd containerd --config containerd.toml
    printf 'search lab.example\n' >resolv.conf
    cat >kubelet.yaml <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: $CGROUP_ROOT
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $CARD_WORK/pki/ca.crt}}
authorization: {mode: Webhook}
readOnlyPort: 0
oomScoreAdj: 0
maxOpenFiles: 20000
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: $CARD_WORK/resolv.conf
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
nodeStatusUpdateFrequency: 2s
Y
    launch kubelet kubelet --config=kubelet.yaml --kubeconfig=pki/kubelet.conf --hostname-override=card --node-ip=10.90.0.1 \
        --root-dir=/var/lib/kubelet --cert-dir=kubelet-pki --v=2
    check objects 20 k apply --server-side -f objects
    check node-ready 50 node_is_ready && return
    grep -E '^[EF]' logs/kubelet.log | tail -12 | cut -c1-600
    tail -3 logs/containerd.log | cut -c1-600
    return 1
}
