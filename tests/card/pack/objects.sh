# Objects of the cluster, as the chart has them: bash objects.sh DIR REPOSITORY
set -euo pipefail

objects=$1 repository=$2
mkdir -p "$objects"
cp "$repository/manifests/crds/nodedevices.yaml" "$objects/1-definition.yaml"
helm=$(bash "$repository/tests/helm/build.sh")/helm
"$helm" template muster "$repository/deploy/helm/muster" --namespace muster-system |
    awk -v RS='\n---\n' -v ORS='\n---\n' '
        /(^|\n)kind: DeviceClass(\n|$)/ && /apiVersion: resource.k8s.io/ {print}
        /(^|\n)kind: ClusterRole(\n|$)/ && /\n  name: muster-driver(\n|$)/ {print}' >"$objects/2-chart.yaml"
[ "$(grep -c '^kind: DeviceClass' "$objects/2-chart.yaml")" -ge 1 ] && [ "$(grep -c '^kind: ClusterRole$' "$objects/2-chart.yaml")" = 1 ] ||
    { echo "the chart has no DeviceClass, or not one ClusterRole of the driver"; exit 1; }
# The driver has a certificate here, and no account.
cat >"$objects/3-binding.yaml" <<'Y'
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: muster-driver-by-certificate}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: muster-driver}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: muster-driver}]
Y
