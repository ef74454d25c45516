# Certificates and kubeconfigs of everybody in the cluster, good for 30 days: bash certificates.sh DIR
set -euo pipefail

mkdir -p "$1"
cd "$1"

authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$1" -keyout "$1.key" -out "$1.crt" 2>/dev/null
}
# certificate NAME SUBJECT AUTHORITY [NAMES]
certificate() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    printf 'keyUsage=digitalSignature\nextendedKeyUsage=clientAuth,serverAuth\n%s\n' "${4:+subjectAltName=$4}" >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA "$3.crt" -CAkey "$3.key" -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
    rm "$1.csr" "$1.ext"
}
# user NAME SUBJECT: with a kubeconfig
user() {
    certificate "$1" "$2" ca
    cat >"$1.conf" <<Y
apiVersion: v1
kind: Config
current-context: card
contexts: [{name: card, context: {cluster: card, user: $1}}]
clusters: [{name: card, cluster: {server: "https://10.90.0.1:6443", certificate-authority: ca.crt}}]
users: [{name: $1, user: {client-certificate: $1.crt, client-key: $1.key}}]
Y
}

authority ca
authority front-ca
openssl ecparam -genkey -name prime256v1 -noout -out sa.key
openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
certificate apiserver /CN=kube-apiserver ca IP:10.90.0.1,IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes.default.svc,DNS:localhost
certificate front /CN=front-proxy-client front-ca
user admin /O=system:masters/CN=admin
user kcm /CN=system:kube-controller-manager
user scheduler /CN=system:kube-scheduler
user kubelet /O=system:nodes/CN=system:node:card
user driver /CN=muster-driver
