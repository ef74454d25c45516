//! Muster's custom resource definitions: each is there, served, and knows every field that this version writes.
//!
//! The API server drops what a definition does not know without a word, so an older one loses what the programs remember. It is
//! compared by its schema and not by a version: whatever this program's own types have must be in it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::{
    finding::{Finding, Reason},
    reading::{self, Reading, Unread},
};
use crate::listing::Names;

/// The deepest that a schema is compared. None of ours is half as deep.
const DEEPEST: usize = 32;

/// What is so of them.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    missing: Names,
    not_served: Names,
    /// Each with what it does not know.
    outdated: Vec<(String, Names)>,
    seen: usize,
}

/// Reads them one by one: a list would bring those of everybody, which may be megabytes each.
pub async fn read(client: &Client) -> Reading<Definitions> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut found = Definitions::default();
    let mut unread: Option<Unread> = None;
    for wanted in muster_api::crds::all() {
        let name = wanted.name_any();
        let reading = reading::get(definitions.clone(), &name).await;
        match reading.unread {
            Some(why) => unread = unread.or(Some(why)),
            None => found.see(&name, &wanted, reading.found.as_ref()),
        }
    }
    Reading { found, unread }
}

impl Definitions {
    fn see(
        &mut self,
        name: &str,
        wanted: &CustomResourceDefinition,
        found: Option<&CustomResourceDefinition>,
    ) {
        let Some(found) = found else {
            self.missing.add(|| name.to_owned());
            return;
        };
        self.seen += 1;
        for version in &wanted.spec.versions {
            let same = found
                .spec
                .versions
                .iter()
                .find(|other| other.name == version.name && other.served);
            match same {
                Some(same) if is_established(found) => {
                    let unknown = unknown(version, same);
                    if !unknown.is_empty() {
                        self.outdated.push((name.to_owned(), unknown));
                    }
                }
                _ => self.not_served.add(|| format!("{name} {}", version.name)),
            }
        }
    }
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let status = definition.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// What the wanted version has and the other does not know.
fn unknown(
    wanted: &CustomResourceDefinitionVersion,
    found: &CustomResourceDefinitionVersion,
) -> Names {
    let mut unknown = Names::default();
    let of = |version: &CustomResourceDefinitionVersion| {
        serde_json::to_value(version).unwrap_or_default()
    };
    let (wanted, found) = (of(wanted), of(found));
    let status = |version: &Value| version["subresources"]["status"].is_object();
    if status(&wanted) && !status(&found) {
        unknown.add(|| "the subresource status".to_owned());
    }
    let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
    compare(&schema(&wanted), &schema(&found), "", DEEPEST, &mut unknown);
    unknown
}

fn compare(wanted: &Value, found: &Value, path: &str, deep: usize, unknown: &mut Names) {
    if deep == 0 || found["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for (name, of_field) in wanted["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match found["properties"].get(name) {
            Some(other) => compare(of_field, other, &path, deep - 1, unknown),
            None => unknown.add(|| path),
        }
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", ".*")] {
        if wanted[key].is_object() {
            let path = format!("{path}{mark}");
            compare(&wanted[key], &found[key], &path, deep - 1, unknown);
        }
    }
    if let Some(allowed) = found["enum"].as_array() {
        let values = wanted["enum"].as_array().into_iter().flatten();
        for value in values.filter(|value| !allowed.contains(value)) {
            unknown.add(|| format!("{path}={value}"));
        }
    }
}

/// What that means.
pub fn findings(definitions: &Reading<Definitions>) -> Vec<Finding> {
    let object = "customresourcedefinitions";
    let Definitions {
        missing,
        not_served,
        outdated,
        seen,
    } = &definitions.found;
    let remedy = "helm upgrade the release: its chart carries them";
    let mut findings = Vec::new();
    if !missing.is_empty() {
        findings.push(Finding::new(
            Reason::DefinitionMissing,
            object,
            format!("definitions of Muster do not exist: {missing}"),
            remedy,
        ));
    }
    if !not_served.is_empty() {
        findings.push(Finding::new(
            Reason::DefinitionMissing,
            object,
            format!("definitions of Muster are not served: {not_served}"),
            remedy,
        ));
    }
    for (name, unknown) in outdated {
        findings.push(Finding::new(
            Reason::DefinitionOutdated,
            name,
            format!(
                "it is of another version than this program: it does not know {unknown}, so the API server drops or refuses these"
            ),
            remedy,
        ));
    }
    definitions.or_passed(findings, || {
        Finding::passed(
            object,
            format!("{seen} definitions know every field of this version"),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scripted_api::{ScriptedApi, failure};

    type Change = Box<dyn Fn(&mut Value)>;

    /// The definitions as the chart installs them, changed by `change`.
    fn installed(change: impl Fn(&mut Value)) -> Vec<(u16, Value)> {
        let definitions = muster_api::crds::all().into_iter();
        definitions
            .map(|definition| {
                let mut value = serde_json::to_value(definition).unwrap();
                value["status"] =
                    json!({"conditions": [{"type": "Established", "status": "True"}]});
                change(&mut value);
                if value.is_null() {
                    failure(404, "not found")
                } else {
                    (200, value)
                }
            })
            .collect()
    }

    async fn found(answers: Vec<(u16, Value)>) -> Vec<Finding> {
        let api = ScriptedApi::new(answers);
        findings(&read(&api.client()).await)
    }

    #[tokio::test]
    async fn definitions_as_the_chart_has_them_pass_and_so_do_newer_ones() {
        for newer in [false, true] {
            let found = found(installed(|definition| {
                if newer {
                    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
                    if let Some(properties) = definition.pointer_mut(spec) {
                        properties["ofTomorrow"] = json!({"type": "string"});
                    }
                }
            }))
            .await;
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].reason, Reason::Passed);
        }
    }

    #[tokio::test]
    async fn each_way_in_which_a_definition_is_not_this_versions_is_told() {
        use Reason::{DefinitionMissing, DefinitionOutdated};
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
        let remove = |definition: &mut Value, parent: &str, key: &str| {
            let parent = definition.pointer_mut(parent).unwrap();
            parent.as_object_mut().unwrap().remove(key).unwrap();
        };
        let changes: [(Change, Reason, &str); 6] = [
            (
                Box::new(|team| *team = Value::Null),
                DefinitionMissing,
                "1 (teams.muster.dev)",
            ),
            (
                Box::new(|team| team["spec"]["versions"][0]["served"] = json!(false)),
                DefinitionMissing,
                "not served: 1 (teams.muster.dev v1alpha1)",
            ),
            (
                Box::new(|team| team["status"] = json!({})),
                DefinitionMissing,
                "not served: 1 (teams.muster.dev v1alpha1)",
            ),
            (
                Box::new(move |team| {
                    remove(team, &format!("{schema}/spec/properties"), "queueing");
                }),
                DefinitionOutdated,
                "does not know 1 (.spec.queueing)",
            ),
            (
                Box::new(move |team| {
                    let one = format!("{schema}/spec/properties/tiers/properties");
                    remove(team, &one, "default");
                }),
                DefinitionOutdated,
                "does not know 1 (.spec.tiers.default)",
            ),
            (
                Box::new(move |team| remove(team, "/spec/versions/0", "subresources")),
                DefinitionOutdated,
                "the subresource status",
            ),
        ];
        for (change, reason, told) in changes {
            let found = found(installed(|definition| {
                if definition["metadata"]["name"] == "teams.muster.dev" {
                    change(definition);
                }
            }))
            .await;
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].reason, reason);
            assert!(found[0].message.contains(told), "{found:?}");
        }
    }

    #[test]
    fn values_that_are_not_allowed_and_fields_in_lists_and_maps_are_seen_and_open_objects_are_passed_over()
     {
        let unknown = |wanted: Value, found: Value| {
            let mut unknown = Names::default();
            compare(&wanted, &found, "", DEEPEST, &mut unknown);
            unknown.list()
        };
        let of = |name: &str| json!({"properties": {name: {}}});
        for (wanted, found, expected) in [
            (
                json!({"enum": ["A", "B"]}),
                json!({"enum": ["A"]}),
                "=\"B\"",
            ),
            (json!({"enum": ["A", "B"]}), json!({}), ""),
            (json!({"items": of("a")}), json!({"items": of("b")}), "[].a"),
            (
                json!({"additionalProperties": of("a")}),
                json!({"additionalProperties": of("b")}),
                ".*.a",
            ),
            (
                of("a"),
                json!({"x-kubernetes-preserve-unknown-fields": true}),
                "",
            ),
        ] {
            assert_eq!(unknown(wanted, found), expected);
        }
    }

    #[tokio::test]
    async fn what_could_not_be_read_is_never_a_pass() {
        let mut answers = installed(|_| {});
        answers[0] = failure(403, "forbidden");
        let found = found(answers).await;
        let reasons: Vec<Reason> = found.iter().map(|finding| finding.reason).collect();
        assert_eq!(reasons, [Reason::ReadForbidden]);
    }
}
