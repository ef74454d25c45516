# etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as released; certificates of pack/certificates.sh.

# kubectl, as an administrator
k() { timeout 12 kubectl --kubeconfig=pki/admin.conf --cache-dir=kubectl-cache "$@"; }

start_control_plane() {
    launch etcd etcd --name=card --data-dir=/var/lib/etcd --unsafe-no-fsync=true --log-level=warn \
        --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
        --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 \
        --initial-cluster=card=http://127.0.0.1:2380
    launch kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --v=1 \
        --bind-address=10.90.0.1 --advertise-address=10.90.0.1 --secure-port=6443 --service-cluster-ip-range=10.96.0.0/16 \
        --tls-cert-file=pki/apiserver.crt --tls-private-key-file=pki/apiserver.key --client-ca-file=pki/ca.crt \
        --kubelet-client-certificate=pki/admin.crt --kubelet-client-key=pki/admin.key \
        --kubelet-preferred-address-types=InternalIP \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
        --service-account-issuer=https://kubernetes.default.svc --api-audiences=https://kubernetes.default.svc \
        --service-account-key-file=pki/sa.pub --service-account-signing-key-file=pki/sa.key \
        --requestheader-client-ca-file=pki/front-ca.crt --requestheader-allowed-names=front-proxy-client \
        --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
        --requestheader-extra-headers-prefix=X-Remote-Extra- \
        --proxy-client-cert-file=pki/front.crt --proxy-client-key-file=pki/front.key
    check control-plane 60 k get --raw /readyz || { tail -5 logs/etcd.log logs/kube-apiserver.log; return 1; }
    launch kube-controller-manager kube-controller-manager --v=1 --leader-elect=false --bind-address=127.0.0.1 \
        --kubeconfig=pki/kcm.conf --authentication-kubeconfig=pki/kcm.conf --authorization-kubeconfig=pki/kcm.conf \
        --use-service-account-credentials=true --root-ca-file=pki/ca.crt --service-account-private-key-file=pki/sa.key \
        --cluster-signing-cert-file=pki/ca.crt --cluster-signing-key-file=pki/ca.key \
        --node-monitor-period=1s --node-monitor-grace-period=20s --kube-api-qps=500 --kube-api-burst=1000
    cat >scheduler.yaml <<'Y'
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: pki/scheduler.conf, qps: 500, burst: 1000}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2
Y
    launch kube-scheduler kube-scheduler --config=scheduler.yaml --v=1 --bind-address=127.0.0.1 \
        --authentication-kubeconfig=pki/scheduler.conf --authorization-kubeconfig=pki/scheduler.conf
}
