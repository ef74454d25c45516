//! Events as every program writes them.

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::core::ObjectMeta;

/// Longest name of an Event's object that goes into the Event's name: 253 less a dot and 16 hexadecimal digits.
const OBJECT_NAME_CHARACTERS: usize = 236;
/// Longest name of whoever reports.
const INSTANCE_CHARACTERS: usize = 128;

/// What an Event says.
#[derive(Clone, Debug)]
pub struct Told<'a> {
    /// The object that it is about; without a namespace if that is cluster-scoped.
    pub regarding: ObjectReference,
    /// What was done, in a word.
    pub action: &'a str,
    /// Why, in a word.
    pub reason: String,
    /// For people; the API takes 1,024 bytes.
    pub note: String,
    /// Whether it is a warning.
    pub is_warning: bool,
    /// The program that reports.
    pub reporter: &'a str,
    /// Which instance of it.
    pub instance: &'a str,
}

impl Told<'_> {
    /// The Event of that time. Those of cluster-scoped objects live in `default`, as Kubernetes demands. The time makes the name unique.
    pub fn at(self, now: Timestamp) -> Event {
        let namespace = self.regarding.namespace.as_deref().unwrap_or("default");
        let object = self.regarding.name.as_deref().unwrap_or_default();
        let object: String = object.chars().take(OBJECT_NAME_CHARACTERS).collect();
        let kind = if self.is_warning { "Warning" } else { "Normal" };
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{object}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            action: Some(self.action.to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(self.note),
            reason: Some(self.reason),
            regarding: Some(self.regarding),
            reporting_controller: Some(self.reporter.to_owned()),
            reporting_instance: Some(self.instance.chars().take(INSTANCE_CHARACTERS).collect()),
            type_: Some(kind.to_owned()),
            ..Event::default()
        }
    }
}
