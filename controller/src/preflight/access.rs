//! Who, beside the system and Muster itself, may do what opens quota: bind pods, allocate devices, write Teams, or take away what refuses.
//!
//! Roles and their bindings are read page by page; of a role is kept which of these rights it has, of a binding whom it gives them to.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::keys;

use super::{
    finding::{Finding, Reason},
    installation::Installation,
    reading::{self, Reading},
};
use crate::listing::Names;

/// Whose programs are the system's.
const SYSTEM_NAMESPACE: &str = "kube-system";
/// Objects of one answer: a binding may have ten thousand subjects, a megabyte of them, and all of an answer are in memory at once.
const PAGE: u32 = 50;
/// Groups that everybody is in.
const EVERYBODY: [&str; 4] = [
    "system:authenticated",
    // Of OpenShift: whoever has logged in.
    "system:authenticated:oauth",
    "system:unauthenticated",
    "system:serviceaccounts",
];

/// The user that everybody is who does not say who they are.
const ANONYMOUS: &str = "system:anonymous";

/// As whom API servers call kubelets, where their certificate is in no group of the system.
const API_SERVERS: [&str; 2] = ["kube-apiserver", "kube-apiserver-kubelet-client"];
/// The API group of those who sign certificates.
const SIGNERS_GROUP: &str = "certificates.k8s.io";
/// Whose certificates the API server believes: by its name, or by that of all of Kubernetes' own.
const CLIENT_SIGNERS: [&str; 2] = ["kubernetes.io/kube-apiserver-client", "kubernetes.io/*"];

/// A right that matters.
#[derive(Debug)]
struct Right {
    reason: Reason,
    /// What having it allows.
    allows: &'static str,
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    /// Which binding in a namespace gives any of it.
    reach: Reach,
}

/// Which binding gives a right, beside one that holds in the whole cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// None: it is about objects that are in no namespace.
    Cluster,
    /// Any in a namespace.
    Namespace,
    /// One in a namespace of Muster's programs.
    NamespaceOfMuster,
}

const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
const CHANGE: &[&str] = &["update", "patch"];

const RIGHTS: [Right; 19] = [
    Right {
        reason: Reason::MayBindPods,
        allows: "bind pods to nodes past the scheduler and its extender",
        group: "",
        resources: &["pods/binding", "bindings"],
        verbs: &["create"],
        reach: Reach::Namespace,
    },
    Right {
        reason: Reason::MayWriteQuota,
        allows: "give quota to anybody",
        group: "muster.dev",
        resources: &["teams", "cohorts", "flavors"],
        verbs: WRITE,
        reach: Reach::Cluster,
    },
    Right {
        reason: Reason::MayWriteState,
        allows: "write what is charged and permitted, if a policy of Muster does not refuse it",
        group: "muster.dev",
        resources: &["ledgers", "nodedevices", "nodedevices/status"],
        verbs: WRITE,
        reach: Reach::Cluster,
    },
    Right {
        reason: Reason::MayWriteState,
        allows: "write admissions of gangs, if a policy of Muster does not refuse it",
        group: "muster.dev",
        resources: &["gangs/status"],
        verbs: CHANGE,
        reach: Reach::Namespace,
    },
    Right {
        reason: Reason::MayAllocateDevices,
        allows: "allocate devices to claims past the scheduler",
        group: "resource.k8s.io",
        resources: &["resourceclaims/status", "resourceclaims/binding"],
        verbs: CHANGE,
        reach: Reach::Namespace,
    },
    Right {
        reason: Reason::MayWriteDeviceClasses,
        allows: "have claims of any DeviceClass select GPUs",
        group: "resource.k8s.io",
        resources: &["deviceclasses"],
        verbs: WRITE,
        reach: Reach::Cluster,
    },
    Right {
        reason: Reason::MayWritePolicies,
        allows: "take Muster's policies and webhooks away",
        group: "admissionregistration.k8s.io",
        resources: &[
            "validatingadmissionpolicybindings",
            "validatingadmissionpolicies",
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
        ],
        verbs: &["update", "patch", "delete", "deletecollection"],
        reach: Reach::Cluster,
    },
    Right {
        reason: Reason::MayImpersonate,
        allows: "act as Muster's controller, or as the system",
        group: "",
        resources: &["users", "groups", "serviceaccounts"],
        verbs: &["impersonate"],
        reach: Reach::NamespaceOfMuster,
    },
    // Kubernetes 1.36 and newer ask for these first, and for the verb above only where they are not given.
    Right {
        reason: Reason::MayImpersonate,
        allows: "act as Muster's controller, or as the system, for some verbs",
        group: "authentication.k8s.io",
        resources: &["users", "groups", "serviceaccounts", "nodes"],
        verbs: &[
            "impersonate:user-info",
            "impersonate:serviceaccount",
            "impersonate:arbitrary-node",
        ],
        reach: Reach::NamespaceOfMuster,
    },
    Right {
        reason: Reason::MayImpersonate,
        allows: "approve client certificates of any name, that of the scheduler too",
        group: SIGNERS_GROUP,
        resources: &["signers"],
        verbs: &["approve"],
        reach: Reach::Cluster,
    },
    Right {
        reason: Reason::MayImpersonate,
        allows: "take tokens of Muster's ServiceAccounts",
        group: "",
        resources: &["serviceaccounts/token"],
        verbs: &["create"],
        reach: Reach::NamespaceOfMuster,
    },
    Right {
        reason: Reason::MayImpersonate,
        allows: "give themselves rights that they do not have",
        group: "rbac.authorization.k8s.io",
        resources: &["clusterroles", "roles"],
        verbs: &["escalate", "bind"],
        reach: Reach::Cluster,
    },
    Right {
        reason: Reason::MayRunAsMuster,
        allows: "run pods as Muster's ServiceAccounts, or programs in its pods",
        group: "",
        resources: &[
            "pods",
            "pods/exec",
            "pods/attach",
            "pods/ephemeralcontainers",
            "replicationcontrollers",
        ],
        verbs: &["create", "update", "patch"],
        reach: Reach::NamespaceOfMuster,
    },
    // The kubelet asks for no other right before it runs a program in a container, and for a WebSocket `get` is enough.
    Right {
        reason: Reason::MayRunAsMuster,
        allows: "run programs in all pods of all nodes, Muster's too, by way of kubelets",
        group: "",
        resources: &["nodes/proxy"],
        verbs: &["get", "create"],
        reach: Reach::Cluster,
    },
    Right {
        reason: Reason::MayRunAsMuster,
        allows: "run pods as Muster's ServiceAccounts by workloads",
        group: "apps",
        resources: &["deployments", "daemonsets", "statefulsets", "replicasets"],
        verbs: &["create", "update", "patch"],
        reach: Reach::NamespaceOfMuster,
    },
    Right {
        reason: Reason::MayRunAsMuster,
        allows: "run pods as Muster's ServiceAccounts by Jobs",
        group: "batch",
        resources: &["jobs", "cronjobs"],
        verbs: &["create", "update", "patch"],
        reach: Reach::NamespaceOfMuster,
    },
    Right {
        reason: Reason::MayReadSecrets,
        allows: "read or write the keys of Muster's authorities, or have tokens of its ServiceAccounts written into Secrets",
        group: "",
        resources: &["secrets"],
        verbs: &[
            "get",
            "list",
            "watch",
            "create",
            "update",
            "patch",
            "delete",
            "deletecollection",
        ],
        reach: Reach::NamespaceOfMuster,
    },
    // The two that are given on purpose come last, and are told without a warning.
    ASSIGN,
    EVERYTHING,
];

/// Whoever has it decides which Team pays for a namespace.
const ASSIGN: Right = Right {
    reason: Reason::Passed,
    allows: "assign Teams to namespaces",
    group: "muster.dev",
    resources: &["teams"],
    verbs: &[keys::ASSIGN_VERB],
    reach: Reach::Cluster,
};
const EVERYTHING: Right = Right {
    reason: Reason::AdministratorAccounts,
    allows: "do everything",
    group: "*",
    resources: &["*"],
    verbs: &["*"],
    reach: Reach::Cluster,
};
const ASSIGN_POSITION: usize = RIGHTS.len() - 2;
const EVERYTHING_POSITION: usize = RIGHTS.len() - 1;

/// Positions in [`RIGHTS`].
type Rights = BTreeSet<usize>;

/// Which roles give which rights; roles without any are not kept.
#[derive(Clone, Debug, Default)]
struct Roles {
    cluster: BTreeMap<String, Rights>,
    namespaced: BTreeMap<(String, String), Rights>,
}

/// Who has which rights.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// By position of the right.
    by_right: BTreeMap<usize, Names>,
    /// Groups that everybody is in, and who is nobody, with what they may, and by which bindings.
    everybody: BTreeMap<String, (BTreeSet<&'static str>, Names)>,
    /// People who may do everything.
    administrators: Names,
}

/// What a rule gives; `names` limits it to objects of these names where it is not empty.
fn rights_of(rules: &[PolicyRule], release: &str) -> Rights {
    let mut rights = Rights::new();
    for rule in rules {
        for (position, right) in RIGHTS.iter().enumerate() {
            if gives(rule, right) && concerns_muster(rule, right, release) {
                rights.insert(position);
            }
        }
    }
    if rights.contains(&EVERYTHING_POSITION) {
        // Nothing more has to be said.
        return Rights::from([EVERYTHING_POSITION]);
    }
    rights
}

fn gives(rule: &PolicyRule, right: &Right) -> bool {
    let any = |list: &Option<Vec<String>>, wanted: &[&str]| {
        list.iter()
            .flatten()
            .any(|word| word == "*" || wanted.contains(&word.as_str()))
    };
    let resource = |wanted: &&str| {
        // `*/status` is the status of every resource.
        let of_any = wanted
            .split_once('/')
            .map(|(_, subresource)| format!("*/{subresource}"));
        let mut listed = rule.resources.iter().flatten();
        listed.any(|word| word == "*" || word == wanted || Some(word) == of_any.as_ref())
    };
    any(&rule.api_groups, &[right.group])
        && any(&Some(rule.verbs.clone()), right.verbs)
        && right.resources.iter().any(resource)
}

/// A rule about policies, webhooks, Secrets or pods of other names leaves Muster's alone, one about signers whose certificates are
/// none of clients lets nobody be another, and one about names at all is none about everything.
fn concerns_muster(rule: &PolicyRule, right: &Right, release: &str) -> bool {
    let names = rule.resource_names.as_deref().unwrap_or_default();
    let by_name = [
        Reason::MayWritePolicies,
        Reason::MayReadSecrets,
        Reason::MayRunAsMuster,
    ];
    if right.reason == Reason::AdministratorAccounts {
        return names.is_empty();
    }
    if right.group == SIGNERS_GROUP {
        let mut signers = names.iter().map(String::as_str);
        return names.is_empty() || signers.any(|name| CLIENT_SIGNERS.contains(&name));
    }
    names.is_empty()
        || !by_name.contains(&right.reason)
        || names
            .iter()
            .any(|name| name.trim_start_matches("zz-").starts_with(release))
}

/// Reads who has which rights.
pub async fn read(client: &Client, installation: Option<&Installation>) -> Reading<Holders> {
    // Before the install, whatever the chart will be called.
    let release = installation.map_or("muster", |installed| installed.name.as_str());
    let cluster_roles: Api<ClusterRole> = Api::all(client.clone());
    let cluster = reading::list(
        cluster_roles,
        ListParams::default().limit(PAGE),
        Roles::default(),
        |found, role| {
            let rights = rights_of(role.rules.as_deref().unwrap_or_default(), release);
            if !rights.is_empty() {
                found.cluster.insert(role.name_any(), rights);
            }
        },
    )
    .await;
    let roles: Api<Role> = Api::all(client.clone());
    let roles = reading::list(
        roles,
        ListParams::default().limit(PAGE),
        cluster.found,
        |found, role| {
            let rights = rights_of(role.rules.as_deref().unwrap_or_default(), release);
            if !rights.is_empty() {
                let key = (role.namespace().unwrap_or_default(), role.name_any());
                found.namespaced.insert(key, rights);
            }
        },
    )
    .await;
    let cluster_bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let bound = reading::list(
        cluster_bindings,
        ListParams::default().limit(PAGE),
        Holders::default(),
        |found, binding| {
            let rights = roles.found.cluster.get(&binding.role_ref.name);
            for subject in binding.subjects.iter().flatten() {
                found.add(rights, subject, None, &binding.name_any(), installation);
            }
        },
    )
    .await;
    let bindings: Api<RoleBinding> = Api::all(client.clone());
    let all = reading::list(
        bindings,
        ListParams::default().limit(PAGE),
        bound.found,
        |found, binding| {
            let namespace = binding.namespace().unwrap_or_default();
            let rights = roles.found.of(&binding.role_ref, &namespace);
            for subject in binding.subjects.iter().flatten() {
                found.add(
                    rights,
                    subject,
                    Some(&namespace),
                    &binding.name_any(),
                    installation,
                );
            }
        },
    )
    .await;
    Reading {
        found: all.found,
        unread: cluster
            .unread
            .or(roles.unread)
            .or(bound.unread)
            .or(all.unread),
    }
}

impl Roles {
    /// What a binding of a namespace refers to.
    fn of(&self, reference: &RoleRef, namespace: &str) -> Option<&Rights> {
        if reference.kind == "ClusterRole" {
            return self.cluster.get(&reference.name);
        }
        self.namespaced
            .get(&(namespace.to_owned(), reference.name.clone()))
    }
}

impl Holders {
    /// A subject has these rights, in one namespace if that is given.
    fn add(
        &mut self,
        rights: Option<&Rights>,
        subject: &Subject,
        namespace: Option<&str>,
        binding: &str,
        installation: Option<&Installation>,
    ) {
        let Some(rights) = rights else { return };
        // A right to everything in one namespace is one to what is in it.
        let expanded: Rights = if namespace.is_some() && rights.contains(&EVERYTHING_POSITION) {
            (0..EVERYTHING_POSITION).collect()
        } else {
            rights.clone()
        };
        let of_muster = namespace.is_some_and(|namespace| {
            installation.is_some_and(|installed| installed.has_programs_in(namespace))
        });
        let held: Rights = expanded
            .into_iter()
            .filter(|position| match RIGHTS[*position].reach {
                _ if namespace.is_none() => true,
                Reach::Cluster => false,
                Reach::Namespace => true,
                Reach::NamespaceOfMuster => of_muster,
            })
            .collect();
        if held.is_empty()
            || is_of_the_system(subject, namespace)
            || is_of_muster(subject, namespace, installation)
        {
            return;
        }
        let binding = place(namespace, binding);
        if is_everybody(subject) {
            let (may, bindings) = self.everybody.entry(called(subject)).or_default();
            may.extend(held.iter().map(|position| RIGHTS[*position].allows));
            bindings.add(|| binding);
            return;
        }
        let whole = format!("{} by {binding}", called(subject));
        for position in held {
            if position == EVERYTHING_POSITION && !is_account(subject) {
                self.administrators.add(|| whole.clone());
            } else {
                self.by_right
                    .entry(position)
                    .or_default()
                    .add(|| whole.clone());
            }
        }
    }
}

fn called(subject: &Subject) -> String {
    match &subject.namespace {
        Some(namespace) if subject.kind == "ServiceAccount" => {
            format!("ServiceAccount {namespace}/{}", subject.name)
        }
        _ => format!("{} {}", subject.kind, subject.name),
    }
}

fn place(namespace: Option<&str>, binding: &str) -> String {
    match namespace {
        Some(namespace) => format!("RoleBinding {namespace}/{binding}"),
        None => format!("ClusterRoleBinding {binding}"),
    }
}

fn is_everybody(subject: &Subject) -> bool {
    match subject.kind.as_str() {
        "Group" => EVERYBODY.contains(&subject.name.as_str()),
        "User" => subject.name == ANONYMOUS,
        _ => false,
    }
}

/// ServiceAccounts are users too, by names of their own, and those of a namespace a group.
fn is_account(subject: &Subject) -> bool {
    subject.kind == "ServiceAccount" || subject.name.starts_with("system:serviceaccount")
}

fn is_of_the_system(subject: &Subject, bound_in: Option<&str>) -> bool {
    let name = subject.name.as_str();
    match subject.kind.as_str() {
        "ServiceAccount" => subject.namespace.as_deref().or(bound_in) == Some(SYSTEM_NAMESPACE),
        "User" => {
            let account = format!("system:serviceaccount:{SYSTEM_NAMESPACE}:");
            name.starts_with(&account)
                || API_SERVERS.contains(&name)
                || (name.starts_with("system:")
                    && name != ANONYMOUS
                    && !name.starts_with("system:serviceaccount:"))
        }
        "Group" => {
            let accounts = format!("system:serviceaccounts:{SYSTEM_NAMESPACE}");
            name == accounts
                || (name.starts_with("system:")
                    && !EVERYBODY.contains(&name)
                    && !name.starts_with("system:serviceaccounts:"))
        }
        _ => false,
    }
}

fn is_of_muster(
    subject: &Subject,
    bound_in: Option<&str>,
    installation: Option<&Installation>,
) -> bool {
    let namespace = subject
        .namespace
        .as_deref()
        .or(bound_in)
        .unwrap_or_default();
    subject.kind == "ServiceAccount"
        && installation.is_some_and(|installed| installed.is_own_account(namespace, &subject.name))
}

/// What that means.
pub fn findings(holders: &Reading<Holders>) -> Vec<Finding> {
    let object = "RBAC";
    let found = &holders.found;
    let mut findings = Vec::new();
    for (who, (may, bindings)) in &found.everybody {
        let may: Vec<&str> = may.iter().copied().collect();
        findings.push(Finding::new(
            Reason::EverybodyMay,
            object,
            format!(
                "{who}, which is everybody, may {}; bindings: {bindings}",
                may.join(", and ")
            ),
            "Delete these bindings",
        ));
    }
    for (position, names) in &found.by_right {
        let right = &RIGHTS[*position];
        if *position == ASSIGN_POSITION {
            continue;
        }
        findings.push(Finding::new(
            right.reason,
            object,
            format!("others may {}: {names}", right.allows),
            "Make sure that each of them has to; else delete the binding, or give it a narrower role",
        ));
    }
    if let Some(unread) = &holders.unread {
        findings.push(unread.finding());
    } else {
        if findings.is_empty() {
            findings.push(Finding::passed(
                object,
                "beside the system, Muster and administrators nobody may bind pods, allocate devices, write quota or policies, or run pods and read Secrets where Muster runs",
            ));
        }
        let assign = found.by_right.get(&ASSIGN_POSITION).map_or_else(
            || "nobody but administrators may assign Teams to namespaces".to_owned(),
            |names| format!("others may assign Teams to namespaces: {names}"),
        );
        findings.push(Finding::passed(object, assign));
    }
    let administrators = &found.administrators;
    if !administrators.is_empty() {
        findings.push(Finding::passed(
            object,
            format!("users and groups that are administrators: {administrators}"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::scripted_api::{ScriptedApi, failure};

    fn list(kind: &str, items: &[Value]) -> (u16, Value) {
        (
            200,
            json!({"kind": format!("{kind}List"), "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {}, "items": items}),
        )
    }

    fn rule(group: &str, resource: &str, verb: &str) -> Value {
        json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]})
    }

    fn role(name: &str, namespace: &str, rules: &[Value]) -> Value {
        json!({"metadata": {"name": name, "namespace": namespace}, "rules": rules})
    }

    fn binding(kind: &str, role: &str, namespace: &str, subject: &Value) -> Value {
        json!({"metadata": {"name": "b", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}, "subjects": [subject]})
    }

    fn account(namespace: &str, name: &str) -> Value {
        json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
    }

    fn group(name: &str) -> Value {
        json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": name})
    }

    fn installation() -> Installation {
        Installation {
            name: "muster".to_owned(),
            namespace: "muster-system".to_owned(),
            ..Installation::default()
        }
    }

    async fn found(answers: [(u16, Value); 4]) -> Vec<Finding> {
        let api = ScriptedApi::new(answers);
        findings(&read(&api.client(), Some(&installation())).await)
    }

    /// What is found of a ClusterRole with this rule, bound in the whole cluster.
    async fn of_rule(rule: Value, subject: &Value) -> Vec<Finding> {
        found([
            list(
                "ClusterRole",
                &[json!({"metadata": {"name": "r"}, "rules": [rule]})],
            ),
            list("Role", &[]),
            list(
                "ClusterRoleBinding",
                &[binding("ClusterRole", "r", "", subject)],
            ),
            list("RoleBinding", &[]),
        ])
        .await
    }

    fn reason(findings: &[Finding]) -> Reason {
        findings[0].reason
    }

    #[tokio::test]
    async fn each_right_that_opens_quota_is_told_with_who_has_it() {
        let bot = account("ml", "bot");
        for (group, resource, verb, expected) in [
            ("", "pods/binding", "create", Reason::MayBindPods),
            ("", "bindings", "create", Reason::MayBindPods),
            ("", "*/binding", "*", Reason::MayBindPods),
            ("muster.dev", "teams", "update", Reason::MayWriteQuota),
            ("muster.dev", "*", "patch", Reason::MayWriteQuota),
            ("muster.dev", "cohorts", "delete", Reason::MayWriteQuota),
            ("muster.dev", "ledgers", "update", Reason::MayWriteState),
            ("muster.dev", "gangs/status", "patch", Reason::MayWriteState),
            (
                "resource.k8s.io",
                "resourceclaims/status",
                "update",
                Reason::MayAllocateDevices,
            ),
            (
                "resource.k8s.io",
                "deviceclasses",
                "create",
                Reason::MayWriteDeviceClasses,
            ),
            (
                "admissionregistration.k8s.io",
                "validatingadmissionpolicybindings",
                "delete",
                Reason::MayWritePolicies,
            ),
            ("", "serviceaccounts", "impersonate", Reason::MayImpersonate),
            (
                "",
                "serviceaccounts/token",
                "create",
                Reason::MayImpersonate,
            ),
            ("*", "*", "*", Reason::AdministratorAccounts),
            ("muster.dev", "teams", "assign", Reason::Passed),
            ("muster.dev", "teams", "list", Reason::Passed),
            (
                "authentication.k8s.io",
                "serviceaccounts",
                "impersonate:serviceaccount",
                Reason::MayImpersonate,
            ),
            (
                "authentication.k8s.io",
                "users",
                "impersonate:user-info",
                Reason::MayImpersonate,
            ),
            (
                "authentication.k8s.io",
                "tokenreviews",
                "create",
                Reason::Passed,
            ),
            (
                "certificates.k8s.io",
                "signers",
                "approve",
                Reason::MayImpersonate,
            ),
            ("certificates.k8s.io", "signers", "sign", Reason::Passed),
            ("", "pods", "create", Reason::MayRunAsMuster),
            ("", "pods/exec", "create", Reason::MayRunAsMuster),
            ("", "nodes/proxy", "get", Reason::MayRunAsMuster),
            ("", "*/proxy", "create", Reason::MayRunAsMuster),
            ("", "nodes/metrics", "get", Reason::Passed),
            ("apps", "daemonsets", "patch", Reason::MayRunAsMuster),
            ("batch", "*", "create", Reason::MayRunAsMuster),
            ("", "secrets", "list", Reason::MayReadSecrets),
            ("", "secrets", "create", Reason::MayReadSecrets),
            ("", "pods", "list", Reason::Passed),
            ("", "pods/log", "get", Reason::Passed),
            ("apps", "bindings", "create", Reason::Passed),
        ] {
            let found = of_rule(rule(group, resource, verb), &bot).await;
            assert_eq!(
                reason(&found),
                expected,
                "{group} {resource} {verb}: {found:?}"
            );
            if expected != Reason::Passed {
                assert!(
                    found[0]
                        .message
                        .contains("ServiceAccount ml/bot by ClusterRoleBinding b"),
                    "{found:?}"
                );
            }
        }
        let found = of_rule(rule("muster.dev", "teams", "assign"), &bot).await;
        assert!(
            found[1]
                .message
                .contains("may assign Teams to namespaces: 1 (ServiceAccount ml/bot"),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn everything_of_one_name_is_not_everything() {
        let jane = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"});
        for (name, reads_secrets) in [("muster-webhook-ca", true), ("mine", false)] {
            let mut rule = rule("*", "*", "*");
            rule["resourceNames"] = json!([name]);
            let found = of_rule(rule, &jane).await;
            let told = |reason: Reason| found.iter().any(|finding| finding.reason == reason);
            assert_eq!(told(Reason::MayReadSecrets), reads_secrets, "{found:?}");
            assert!(told(Reason::MayWriteQuota), "{found:?}");
            let of_administrators = found
                .iter()
                .any(|finding| finding.message.contains("administrators: "));
            assert!(!of_administrators, "{found:?}");
        }
    }

    #[tokio::test]
    async fn the_system_and_muster_itself_are_passed_over_and_everybody_is_an_error() {
        let user = |name: &str| json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name});
        for (subject, expected) in [
            (user("system:kube-scheduler"), Reason::Passed),
            (user("system:serviceaccount:kube-system:x"), Reason::Passed),
            (user("system:serviceaccount:ml:x"), Reason::MayBindPods),
            (user("system:anonymous"), Reason::EverybodyMay),
            (group("system:masters"), Reason::Passed),
            (group("system:serviceaccounts:ml"), Reason::MayBindPods),
            (group("researchers"), Reason::MayBindPods),
            (account("kube-system", "scheduler"), Reason::Passed),
            (account("muster-system", "muster-scheduler"), Reason::Passed),
            (account("ml", "muster-scheduler"), Reason::MayBindPods),
            (group("system:authenticated"), Reason::EverybodyMay),
            (group("system:authenticated:oauth"), Reason::EverybodyMay),
            (group("system:unauthenticated"), Reason::EverybodyMay),
            (group("system:serviceaccounts"), Reason::EverybodyMay),
        ] {
            let found = of_rule(rule("", "pods/binding", "create"), &subject).await;
            assert_eq!(reason(&found), expected, "{subject}");
        }
    }

    #[tokio::test]
    async fn the_api_servers_own_way_to_kubelets_is_not_told_and_anybody_elses_is() {
        for (name, expected) in [
            ("kube-apiserver", Reason::Passed),
            ("kube-apiserver-kubelet-client", Reason::Passed),
            ("jane", Reason::MayRunAsMuster),
        ] {
            let user =
                json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name});
            let found = of_rule(rule("", "nodes/proxy", "*"), &user).await;
            assert_eq!(reason(&found), expected, "{name}: {found:?}");
        }
    }

    #[tokio::test]
    async fn people_who_may_do_everything_are_told_and_not_warned_of() {
        let found = of_rule(rule("*", "*", "*"), &group("admins")).await;
        assert!(found.iter().all(|finding| finding.reason == Reason::Passed));
        assert!(
            found[2]
                .message
                .contains("are administrators: 1 (Group admins"),
            "{found:?}"
        );
        let user = |name: &str| json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name});
        for (subject, expected) in [
            (group("system:authenticated"), Reason::EverybodyMay),
            (user("system:anonymous"), Reason::EverybodyMay),
            (
                user("system:serviceaccount:ml:bot"),
                Reason::AdministratorAccounts,
            ),
            (
                group("system:serviceaccounts:ml"),
                Reason::AdministratorAccounts,
            ),
        ] {
            let found = of_rule(rule("*", "*", "*"), &subject).await;
            assert_eq!(reason(&found), expected, "{subject}");
        }
    }

    #[tokio::test]
    async fn a_binding_in_a_namespace_gives_only_what_is_in_namespaces() {
        let bot = account("ml", "bot");
        for (kind, rule, expected) in [
            (
                "ClusterRole",
                rule("", "pods/binding", "create"),
                Reason::MayBindPods,
            ),
            (
                "ClusterRole",
                rule("muster.dev", "teams", "update"),
                Reason::Passed,
            ),
            ("ClusterRole", rule("*", "*", "*"), Reason::MayBindPods),
            ("Role", rule("", "bindings", "create"), Reason::MayBindPods),
            (
                "Role",
                rule("admissionregistration.k8s.io", "*", "*"),
                Reason::Passed,
            ),
        ] {
            let (cluster, namespaced) = if kind == "Role" {
                (vec![], vec![role("r", "ml", std::slice::from_ref(&rule))])
            } else {
                (
                    vec![json!({"metadata": {"name": "r"}, "rules": [rule]})],
                    vec![],
                )
            };
            let found = found([
                list("ClusterRole", &cluster),
                list("Role", &namespaced),
                list("ClusterRoleBinding", &[]),
                list("RoleBinding", &[binding(kind, "r", "ml", &bot)]),
            ])
            .await;
            assert_eq!(reason(&found), expected, "{kind} {rule}");
        }
    }

    #[tokio::test]
    async fn tokens_names_pods_and_secrets_matter_where_musters_programs_are() {
        use Reason::{MayImpersonate, MayReadSecrets, MayRunAsMuster, Passed};
        for (rule, namespace, expected) in [
            (rule("", "serviceaccounts", "impersonate"), "ml", Passed),
            (rule("", "serviceaccounts/token", "create"), "ml", Passed),
            (rule("", "pods", "create"), "ml", Passed),
            (rule("", "secrets", "get"), "ml", Passed),
            (
                rule("", "serviceaccounts", "impersonate"),
                "muster-system",
                MayImpersonate,
            ),
            (
                rule("", "serviceaccounts/token", "create"),
                "muster-system",
                MayImpersonate,
            ),
            (rule("", "pods", "create"), "muster-system", MayRunAsMuster),
            (rule("apps", "*", "*"), "muster-system", MayRunAsMuster),
            (rule("", "secrets", "get"), "muster-system", MayReadSecrets),
        ] {
            let edit = json!({"metadata": {"name": "edit"}, "rules": [rule]});
            let bound = binding("ClusterRole", "edit", namespace, &account("ml", "bot"));
            let found = found([
                list("ClusterRole", &[edit]),
                list("Role", &[]),
                list("ClusterRoleBinding", &[]),
                list("RoleBinding", &[bound]),
            ])
            .await;
            assert_eq!(reason(&found), expected, "{rule} {namespace}: {found:?}");
        }
    }

    #[tokio::test]
    async fn rules_about_policies_of_other_names_are_not_about_musters() {
        let mut of_others = rule(
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            "patch",
        );
        of_others["resourceNames"] = json!(["gatekeeper"]);
        assert_eq!(
            reason(&of_rule(of_others.clone(), &account("ml", "bot")).await),
            Reason::Passed
        );
        of_others["resourceNames"] = json!(["zz-muster"]);
        assert_eq!(
            reason(&of_rule(of_others, &account("ml", "bot")).await),
            Reason::MayWritePolicies
        );
        for (name, expected) in [
            ("registry-password", Reason::Passed),
            ("muster-webhook-ca", Reason::MayReadSecrets),
        ] {
            let mut secret = rule("", "secrets", "get");
            secret["resourceNames"] = json!([name]);
            let found = of_rule(secret, &account("ml", "bot")).await;
            assert_eq!(reason(&found), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn who_approves_certificates_that_are_none_of_clients_cannot_be_another() {
        for (signer, expected) in [
            ("kubernetes.io/kubelet-serving", Reason::Passed),
            ("example.com/*", Reason::Passed),
            (
                "kubernetes.io/kube-apiserver-client",
                Reason::MayImpersonate,
            ),
            ("kubernetes.io/*", Reason::MayImpersonate),
        ] {
            let mut rule = rule("certificates.k8s.io", "signers", "approve");
            rule["resourceNames"] = json!([signer]);
            let found = of_rule(rule, &account("ml", "approver")).await;
            assert_eq!(reason(&found), expected, "{signer}: {found:?}");
        }
    }

    #[tokio::test]
    async fn what_may_be_large_is_read_in_small_pages() {
        let api = ScriptedApi::new([
            list("ClusterRole", &[]),
            list("Role", &[]),
            list("ClusterRoleBinding", &[]),
            list("RoleBinding", &[]),
        ]);
        read(&api.client(), None).await;
        let asked = api.asked();
        assert_eq!(asked.len(), 4);
        let small = |query: &str| query.split('&').any(|part| part.ends_with("limit=50"));
        assert!(asked.iter().all(|asked| small(&asked.query)), "{asked:?}");
    }

    #[tokio::test]
    async fn what_could_not_be_read_is_never_a_pass() {
        let found = found([
            list("ClusterRole", &[]),
            failure(403, "roles is forbidden"),
            list("ClusterRoleBinding", &[]),
            list("RoleBinding", &[]),
        ])
        .await;
        let reasons: Vec<Reason> = found.iter().map(|finding| finding.reason).collect();
        assert_eq!(reasons, [Reason::ReadForbidden]);
    }
}
