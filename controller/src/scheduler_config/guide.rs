//! What to put where, as comments before the configuration: the whole output can be redirected into the file.

use std::{fmt::Write, path::Path};

use muster_serve::authority_secret::{AUTHORITIES, BUNDLE, CLIENT_CERTIFICATE, CLIENT_KEY};

use super::{Request, merge, target::Target};

/// Where the file lies on a machine of the control plane.
const DIRECTORY: &str = "/etc/kubernetes/muster";
/// Where the manifests of static pods lie, as kubeadm has it.
const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// What RKE2 calls its own begins so. It writes the manifests anew at each start, by a configuration of its own.
const RKE2: &str = "/var/lib/rancher/rke2/";

/// The comments of this configuration.
pub fn before(request: &Request) -> String {
    let mut text = match request.target {
        Target::Kubeadm => kubeadm(request),
        Target::Second => second(request),
        Target::Other | Target::Managed => other(),
    };
    if request.existing.is_some() {
        text += "\n\
            The file of --merge is in it, with Muster's extender added to its extenders and client limits set where it had none.\n\
            Its comments are lost.\n";
    }
    if let Some(directory) = &request.settings.tls_files {
        text += "\n";
        text += &certificates(directory, request);
    } else {
        text += "\n\
            It holds a private key: mode 0600, and kube-scheduler logs it from --v=2 on. --tls-files DIR names files instead.\n";
    }
    comment(&text)
}

/// For a control plane that nobody can configure: values of the chart, not a configuration.
pub fn managed_control_plane() -> String {
    let text = "\
        Nobody can give the kube-scheduler of a managed control plane an extender. Let the chart run a second one, which takes every\n\
        pod that Muster manages; these are values of the chart:\n\
        \n\
        \x20 helm upgrade RELEASE deploy/helm/muster --namespace NAMESPACE --reuse-values --values THIS-FILE\n\
        \n\
        Pods of excluded namespaces stay with the provider's scheduler, and must not name claims of gpu.muster.dev.\n\
        Without any scheduler of your own: --set extender.enabled=false. Gates, pins and permits hold; a gang that lost a place\n\
        goes on binding until that is noticed.\n";
    comment(text) + "mode: Enforce\nextender:\n  enabled: true\nscheduler:\n  enabled: true\n"
}

/// Whether a scheduler is started as RKE2 starts it.
fn is_of_rke2(request: &Request) -> bool {
    let mut files = request
        .running
        .iter()
        .filter_map(|found| found.kubeconfig.as_deref());
    files.any(|file| file.starts_with(RKE2))
}

fn kubeadm(request: &Request) -> String {
    let mut text = String::from("For the cluster's own kube-scheduler, in static pods");
    let names: Vec<&str> = request
        .running
        .iter()
        .map(|found| found.pod.as_str())
        .collect();
    let _ = writeln!(text, " ({}).", names.join(", "));
    let configured = request
        .running
        .iter()
        .find_map(|found| Some((found.config.as_deref()?, found.config_on_machine.as_deref())));
    if let Some((file, on_machine)) = configured {
        let place = match on_machine {
            Some(place) if place == file => format!("{place}, which the pod reads already"),
            Some(place) => format!("{place}, which the pod reads already as {file}"),
            None => format!(
                "what the pod reads as {file}, which it has from no directory of the machine"
            ),
        };
        let manifests = if is_of_rke2(request) {
            format!("{RKE2}agent/pod-manifests")
        } else {
            MANIFESTS.to_owned()
        };
        let _ = write!(
            text,
            "\n\
            1. On every machine of the control plane, put this in place of {place}.\n\
            2. Have the pod start again: move {manifests}/kube-scheduler.yaml away, wait until the pod is gone, and\n\
            \x20  move it back. One machine after the other.\n"
        );
    } else if is_of_rke2(request) {
        let _ = write!(
            text,
            "\n\
            1. On every machine of the control plane, save this as {DIRECTORY}/scheduler.yaml.\n\
            2. Add to these lists of /etc/rancher/rke2/config.yaml, and restart rke2-server, one machine after the other:\n\
            \n\
            \x20    kube-scheduler-arg:          [config={DIRECTORY}/scheduler.yaml]\n\
            \x20    kube-scheduler-extra-mount:  [\"{DIRECTORY}:{DIRECTORY}\"]\n"
        );
    } else {
        let _ = write!(
            text,
            "\n\
            1. On every machine of the control plane, save this as {DIRECTORY}/scheduler.yaml.\n\
            2. In {MANIFESTS}/kube-scheduler.yaml add, one machine after the other:\n\
            \n\
            \x20    spec.containers[0].command:       - --config={DIRECTORY}/scheduler.yaml\n\
            \x20    spec.containers[0].volumeMounts:  - {{name: muster, mountPath: {DIRECTORY}, readOnly: true}}\n\
            \x20    spec.volumes:                     - {{name: muster, hostPath: {{path: {DIRECTORY}, type: Directory}}}}\n\
            \n\
            3. So that `kubeadm upgrade` keeps it, say the same in the ClusterConfiguration (kubectl -n kube-system edit configmap\n\
            \x20  kubeadm-config):\n\
            \n\
            \x20    scheduler:\n\
            \x20      extraArgs: [{{name: config, value: {DIRECTORY}/scheduler.yaml}}]\n\
            \x20      extraVolumes: [{{name: muster, hostPath: {DIRECTORY}, mountPath: {DIRECTORY}, readOnly: true}}]\n"
        );
    }
    text += "\n\
        Then `kubectl -n kube-system get pods -l component=kube-scheduler` shows them Running, and not restarting. Before Muster is\n\
        uninstalled, take it out again.\n";
    text
}

fn other() -> String {
    "For the cluster's own kube-scheduler: start it with --config=FILE, where FILE is this. It then ignores its flag --kubeconfig.\n"
        .to_owned()
}

fn second(request: &Request) -> String {
    let name = merge::second_name(request);
    format!(
        "For a second kube-scheduler, in a pod of this cluster. The chart runs one with scheduler.enabled=true, and needs nothing\n\
        of this. To run it yourself:\n\
        \n\
        1. Give its ServiceAccount the ClusterRoles system:kube-scheduler and system:volume-scheduler, the Role\n\
        \x20  extension-apiserver-authentication-reader of kube-system, and get, create and update of Leases in {}.\n\
        2. Start kube-scheduler of the cluster's version with --config=FILE, where FILE is this.\n\
        3. Set schedulerName={name} in the chart, so that Muster's webhook sends its pods there.\n",
        request.installation.namespace
    )
}

/// The way of the three files from the Secret to the scheduler's machine. The Secret is not to be mounted whole: it holds the
/// authority's own key, too.
fn certificates(directory: &Path, request: &Request) -> String {
    let directory = directory.display();
    let namespace = &request.installation.namespace;
    let secret = &request.installation.extender_ca_secret;
    format!(
        "\
The files of tlsConfig are these keys of the Secret {namespace}/{secret}:

  for file in {BUNDLE} {CLIENT_CERTIFICATE} {CLIENT_KEY}; do
    kubectl -n {namespace} get secret {secret} -o go-template=\"{{{{index .data \\\"$file\\\" | base64decode}}}}\" > {directory}/$file
  done
  chmod 600 {directory}/{CLIENT_KEY}

Where kube-scheduler runs in a pod of this cluster, mount them instead, and list them in `items`: the Secret also
holds {AUTHORITIES}, the private key of the authority, which the scheduler must not have. A static pod needs their directory
mounted like that of this file.
"
    )
}

fn comment(text: &str) -> String {
    text.lines()
        .map(|line| {
            if line.is_empty() {
                "#\n".to_owned()
            } else {
                format!("# {line}\n")
            }
        })
        .collect()
}
