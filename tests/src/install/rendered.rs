//! From what the chart rendered to a process: command, arguments and environment of a container.

use std::{collections::BTreeMap, net::Ipv4Addr};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Container, PodSpec},
};
use kube::Api;

use super::{NAMESPACE, RELEASE, identity};
use crate::{control_plane::ControlPlane, node::Node, process::Launch, programs::Programs};

/// What a field reference of the downward API stands for.
type Fields<'a> = BTreeMap<&'static str, String>;

/// A replica of the Deployment of this component; replicas are numbered from 0.
pub(super) async fn deployment(
    control_plane: &ControlPlane,
    programs: &Programs,
    component: &str,
    replica: usize,
    address: Ipv4Addr,
) -> Result<Launch> {
    let name = format!("{RELEASE}-{component}");
    let deployments: Api<Deployment> = Api::namespaced(control_plane.client(), NAMESPACE);
    let deployment = deployments
        .get(&name)
        .await
        .with_context(|| format!("the chart made no Deployment {name}"))?;
    let spec = deployment.spec.template.spec;
    let (container, account) = parts(&name, spec)?;
    let kubeconfig = identity::kubeconfig(control_plane, &name, &account, None).await?;
    let pod = format!("{name}-{replica}");
    let fields = fields(&pod, None, address);
    let process_name = if replica == 0 { &name } else { &pod };
    let launch = process(process_name, &container, programs, &fields, address)?;
    Ok(launch.arg(format!("--kubeconfig={}", kubeconfig.display())))
}

/// The DaemonSet's pod on this node.
pub(super) async fn driver(
    control_plane: &ControlPlane,
    programs: &Programs,
    node: &Node,
    address: Ipv4Addr,
) -> Result<Launch> {
    let name = format!("{RELEASE}-driver");
    let daemon_sets: Api<DaemonSet> = Api::namespaced(control_plane.client(), NAMESPACE);
    let daemon_set = daemon_sets
        .get(&name)
        .await
        .with_context(|| format!("the chart made no DaemonSet {name}"))?;
    let spec = daemon_set.spec.template.spec;
    let (container, account) = parts(&name, spec)?;
    let pod = identity::placeholder(control_plane, &account, node.name()).await?;
    let file = format!("driver-{}", node.name());
    let kubeconfig = identity::kubeconfig(control_plane, &file, &account, Some(&pod)).await?;
    let fields = fields(&file, Some(node.name()), address);
    let mut launch = process("driver", &container, programs, &fields, address)?;
    let on_node = node.launch("driver", launch.program.clone());
    launch.name = on_node.name;
    launch.inside = on_node.inside;
    Ok(launch.arg(format!("--kubeconfig={}", kubeconfig.display())))
}

fn parts(name: &str, spec: Option<PodSpec>) -> Result<(Container, String)> {
    let spec = spec.with_context(|| format!("{name} has no pod template"))?;
    let account = spec.service_account_name;
    let account = account.with_context(|| format!("{name} names no ServiceAccount"))?;
    let container = spec.containers.into_iter().next();
    Ok((
        container.with_context(|| format!("{name} has no container"))?,
        account,
    ))
}

fn fields(pod: &str, node: Option<&str>, address: Ipv4Addr) -> Fields<'static> {
    let mut fields = Fields::from([
        ("metadata.name", pod.to_owned()),
        ("metadata.namespace", NAMESPACE.to_owned()),
        ("status.podIP", address.to_string()),
    ]);
    if let Some(node) = node {
        fields.insert("spec.nodeName", node.to_owned());
    }
    fields
}

fn process(
    name: &str,
    container: &Container,
    programs: &Programs,
    fields: &Fields<'_>,
    address: Ipv4Addr,
) -> Result<Launch> {
    let mut environment = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) => expand(value, &environment),
            (None, Some(source)) => {
                let field = source
                    .field_ref
                    .as_ref()
                    .map(|field| field.field_path.as_str());
                let known = field.and_then(|field| fields.get(field));
                known
                    .with_context(|| format!("{name}: no value for variable {}", variable.name))?
                    .clone()
            }
            (None, None) => String::new(),
        };
        environment.insert(variable.name.clone(), value);
    }
    let command = container.command.iter().flatten();
    let mut words = command
        .chain(container.args.iter().flatten())
        .map(|word| expand(word, &environment));
    let Some(program) = words.next() else {
        bail!("{name}: the chart renders no command");
    };
    let mut launch = Launch::new(name, programs.path(program.trim_start_matches('/')));
    launch = launch.args(words.map(|word| word.replace("=0.0.0.0:", &format!("={address}:"))));
    for (name, value) in environment {
        launch = launch.env(name, value);
    }
    Ok(launch)
}

/// `$(NAME)` of a variable that is known becomes its value, as in a kubelet.
fn expand(text: &str, environment: &BTreeMap<String, String>) -> String {
    environment
        .iter()
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("$({name})"), value)
        })
}
