# The inner part of card.sh, in namespaces of its own: brings the cluster up and looks at it. Each part goes on in the same shell, because
# later checks are about the pods of earlier ones. A check that fails ends nothing: what follows may still say something.
set -u
cd "$CARD_WORK" || exit 1
export PATH=$CARD_WORK/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$CARD_WORK/home
mkdir -p "$HOME"

for part in report machine gpu control_plane kubelet driver pods; do
    # shellcheck source=/dev/null
    . "inside/$part.sh"
done
trap leave EXIT TERM

prepare_machine
find_gpu
start_control_plane || exit 1
start_kubelet || exit 1
start_driver driver "$DRIVER_ROOT"
publish_gpus || exit 1

for part in claim no_claim restart handover permit fault bypass side_door metrics root; do
    # shellcheck source=/dev/null
    . "checks/$part.sh"
done
say 'done'
