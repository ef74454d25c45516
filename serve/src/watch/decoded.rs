//! An object of the API server as far as it can be decoded.
//!
//! What the API server stores need not be what this version can read: another version of Muster wrote it, or Kubernetes
//! accepts more than our types do (a Job whose pod template says `creationTimestamp: 9999-12-31T23:59:59Z`, which is
//! later than `jiff` can count). Such an object must cost neither the list that contains it nor more of itself than
//! need be:
//!
//! * a timestamp out of range becomes the last one that can be told, which means the same: far off;
//! * what is nested too deep is left out ([`too_deep`]);
//! * of everything else the smallest part that cannot be decoded is left out, and named ([`Missing`]);
//! * where that does not help (a required field), only the metadata is known.
//!
//! An object that is as it should be is read from its text at once, and what nobody asks for is not read at all
//! (most `managedFields`). Only of one that is not a tree of values is made, for what is wrong with it.
//!
//! The text is taken as it stands, so no decoder may have buffered it before: kube's do not, as the API server says of an
//! event of what type it is before it says what object it is about.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::PartialObjectMeta};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use serde_path_to_error::{Path, Segment};

use super::{managed_fields, too_deep};
use crate::server::json_bounds::MOST_DEPTH;

/// Parts that are mended or left out of one object; one that needs more is known by its metadata only.
const MENDS: usize = 64;

/// An object as far as it can be decoded.
#[derive(Clone, Debug)]
pub enum Decoded<K> {
    /// All of it.
    Whole(K),
    /// A part of it.
    Partial(Box<Partial<K>>),
}

/// An object of which something could not be decoded.
#[derive(Clone, Debug)]
pub struct Partial<K> {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// The object without what is missing; `None` where a required field is.
    pub object: Option<K>,
    /// What could not be decoded: at least one part.
    pub missing: Vec<Missing>,
}

/// A part that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Where it stands, from the root of the object: `spec.permits[2].attempt`; empty: the object itself.
    pub path: String,
    /// Why, in the decoder's words.
    pub error: String,
}

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Decoded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Box::<RawValue>::deserialize(deserializer)?;
        if let Ok(object) = managed_fields::read(stored.get()) {
            return Ok(Self::Whole(object));
        }
        let cut = too_deep::cut_off(stored.get());
        let missing = cut.as_ref().map(|_| Missing {
            path: String::new(),
            error: format!("something is nested deeper than {MOST_DEPTH} levels"),
        });
        let stored = serde_json::from_str(cut.as_deref().unwrap_or_else(|| stored.get()));
        stored
            .and_then(|stored| as_far_as_possible(stored, missing))
            .map_err(serde::de::Error::custom)
    }
}

impl<K> Decoded<K> {
    /// As much of it as could be read; `None`: its metadata alone. Nothing may be concluded from what is missing.
    pub fn read(&self) -> Option<&K> {
        match self {
            Self::Whole(object) => Some(object),
            Self::Partial(partial) => partial.object.as_ref(),
        }
    }
}

impl<K: Resource> Decoded<K> {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Whole(object) => object.meta(),
            Self::Partial(partial) => &partial.metadata,
        }
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Whole(object) => object.meta_mut(),
            Self::Partial(partial) => &mut partial.metadata,
        }
    }

    /// They are large, and hardly anybody reads them.
    pub(super) fn reduce_managed_fields(&mut self) {
        managed_fields::reduce(self.meta_mut());
        if let Self::Partial(partial) = self
            && let Some(object) = &mut partial.object
        {
            managed_fields::reduce(object.meta_mut());
        }
    }
}

crate::of_kind!(
    Decoded<K>,
    |decoded| decoded.metadata(),
    decoded.metadata_mut()
);

/// Fails only where not even the metadata can be decoded. `cut_off`: what is missing from the beginning.
fn as_far_as_possible<K: Resource + DeserializeOwned>(
    mut stored: Value,
    cut_off: Option<Missing>,
) -> Result<Decoded<K>, serde_json::Error> {
    let mut missing: Vec<Missing> = cut_off.into_iter().collect();
    let mut object = None;
    for _ in 0..=MENDS {
        match serde_path_to_error::deserialize::<_, K>(&stored) {
            Ok(decoded) if missing.is_empty() => return Ok(Decoded::Whole(decoded)),
            Ok(decoded) => {
                object = Some(decoded);
                break;
            }
            Err(error) => {
                let path = error.path().clone();
                let error = error.into_inner().to_string();
                match mend(&mut stored, &path) {
                    Mended::Clamped => {}
                    Mended::LeftOut(path) => missing.push(Missing { path, error }),
                    Mended::No => {
                        let path = path.to_string();
                        missing.push(Missing { path, error });
                        break;
                    }
                }
            }
        }
    }
    let PartialObjectMeta { metadata, .. } = PartialObjectMeta::<K>::deserialize(&stored)?;
    Ok(Decoded::Partial(Box::new(Partial {
        metadata,
        object,
        missing,
    })))
}

/// What could be done about a part that cannot be decoded.
enum Mended {
    /// It is a timestamp, now within range.
    Clamped,
    /// It was taken out; this is where it stood.
    LeftOut(String),
    /// Nothing: it is the object itself, or what tells which object it is.
    No,
}

fn mend(stored: &mut Value, path: &Path) -> Mended {
    // Within an enum, and where the decoder lost its way, the place above is what is known.
    let steps: Vec<&Segment> = path
        .iter()
        .take_while(|step| matches!(step, Segment::Map { .. } | Segment::Seq { .. }))
        .collect();
    let Some((last, above)) = steps.split_last() else {
        return Mended::No;
    };
    let mut parent = stored;
    for step in above {
        let Some(below) = step_into(parent, step) else {
            return Mended::No;
        };
        parent = below;
    }
    let Some(value) = step_into(parent, last) else {
        return Mended::No;
    };
    if clamp(value) {
        return Mended::Clamped;
    }
    let shown = shown(&steps);
    if is_identity(&shown) {
        return Mended::No;
    }
    match (last, parent) {
        (Segment::Map { key }, Value::Object(fields)) => {
            fields.remove(key);
        }
        (Segment::Seq { index }, Value::Array(items)) => {
            items.remove(*index);
        }
        _ => return Mended::No,
    }
    Mended::LeftOut(shown)
}

fn step_into<'a>(value: &'a mut Value, step: &Segment) -> Option<&'a mut Value> {
    match (step, value) {
        (Segment::Map { key }, Value::Object(fields)) => fields.get_mut(key),
        (Segment::Seq { index }, Value::Array(items)) => items.get_mut(*index),
        _ => None,
    }
}

fn shown(steps: &[&Segment]) -> String {
    let mut shown = String::new();
    for step in steps {
        if matches!(step, Segment::Map { .. }) && !shown.is_empty() {
            shown.push('.');
        }
        shown.push_str(&step.to_string());
    }
    shown
}

/// What tells which object it is, and which version of it.
fn is_identity(path: &str) -> bool {
    [
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.resourceVersion",
    ]
    .contains(&path)
}

/// Makes the last timestamp that can be told of one that is beyond.
fn clamp(value: &mut Value) -> bool {
    let Value::String(text) = value else {
        return false;
    };
    if !is_beyond_range(text) {
        return false;
    }
    *text = Timestamp::MAX.to_string();
    true
}

/// Whether it is written like a timestamp (RFC 3339, of any year from 9999 on) that cannot be told.
fn is_beyond_range(text: &str) -> bool {
    let shape: String = text
        .chars()
        .map(|character| {
            if character.is_ascii_digit() {
                '0'
            } else {
                character
            }
        })
        .collect();
    let Some((year, rest)) = shape.split_once('-') else {
        return false;
    };
    let is_written_so = year.len() >= 4
        && year.chars().all(|digit| digit == '0')
        && rest.starts_with("00-00T00:00:00");
    let is_late = text.len() > "9999-".len() && (year.len() > 4 || text.starts_with("9999-"));
    is_written_so && is_late && text.parse::<Timestamp>().is_err()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    fn decoded<K: Resource + DeserializeOwned>(stored: Value) -> Decoded<K> {
        serde_json::from_value(stored).unwrap()
    }

    #[test]
    fn a_timestamp_beyond_range_is_the_last_one_that_can_be_told() {
        let late = [
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59.999999Z",
            "12026-01-01T00:00:00Z",
        ];
        for text in late {
            let stored = json!({
                "metadata": {"name": "a", "creationTimestamp": text},
                "spec": {"completions": 4, "template": {"metadata": {"creationTimestamp": text}}},
            });
            let Decoded::Whole(job) = decoded::<Job>(stored) else {
                panic!("{text} costs a part of the object");
            };
            let template = job.spec.unwrap().template.metadata.unwrap();
            assert_eq!(template.creation_timestamp.unwrap().0, Timestamp::MAX);
            assert_eq!(job.metadata.creation_timestamp.unwrap().0, Timestamp::MAX);
        }
        for text in [
            "2026-01-01T00:00:00Z",
            "9999-12-01T00:00:00Z",
            "9999-13",
            "tomorrow",
            "",
        ] {
            assert!(!is_beyond_range(text), "{text}");
        }
    }

    #[test]
    fn the_smallest_part_that_cannot_be_decoded_is_left_out_and_named() {
        let stored = json!({
            "metadata": {"name": "a", "namespace": "lab", "uid": "u", "generation": "many"},
            "spec": {"nodeName": "n1", "containers": [
                {"name": "first", "ports": [{"containerPort": 80}, {"containerPort": "http"}]},
                {"name": "second", "env": 7},
            ]},
            "status": {"phase": "Running", "startTime": "tomorrow"},
        });
        let Decoded::Partial(partial) = decoded::<Pod>(stored) else {
            panic!("it cannot be whole");
        };
        let mut paths: Vec<&str> = partial
            .missing
            .iter()
            .map(|part| part.path.as_str())
            .collect();
        paths.sort_unstable();
        assert_eq!(
            paths,
            [
                "metadata.generation",
                "spec.containers[0].ports[1].containerPort",
                "spec.containers[1].env",
                "status.startTime",
            ]
        );
        let pod = partial.object.unwrap();
        assert_eq!(partial.metadata.uid.as_deref(), Some("u"));
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("n1"));
        assert_eq!(spec.containers.len(), 2);
        assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Running"));
    }

    #[test]
    fn an_object_with_more_broken_parts_than_are_mended_is_known_by_its_metadata() {
        let broken = |count: usize| {
            let ports: Vec<Value> = (0..count).map(|_| json!({"hostPort": "x"})).collect();
            json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "ports": ports}]}})
        };
        for (count, is_known) in [(MENDS, true), (MENDS + 1, false)] {
            let Decoded::Partial(partial) = decoded::<Pod>(broken(count)) else {
                panic!("it cannot be whole");
            };
            assert_eq!(partial.object.is_some(), is_known, "{count} broken parts");
            assert_eq!(partial.metadata.name.as_deref(), Some("a"));
        }
    }

    #[test]
    fn what_tells_which_object_it_is_is_never_left_out() {
        let stored = json!({"metadata": {"name": {"is": "broken"}}});
        let failed = serde_json::from_value::<Decoded<Pod>>(stored);
        assert!(failed.is_err(), "{failed:?}");
    }

    /// A kind that counts how often it is read, and notes from what.
    #[derive(Clone, Debug, Deserialize)]
    struct Counting {
        metadata: ObjectMeta,
        spec: Spec,
    }

    #[derive(Clone, Debug)]
    struct Spec {
        is_from_text: bool,
    }

    thread_local! {
        static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    impl<'de> Deserialize<'de> for Spec {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            READ.set(READ.get() + 1);
            let is_from_text = std::any::type_name::<D>().contains("StrRead");
            serde::de::IgnoredAny::deserialize(deserializer)?;
            Ok(Self { is_from_text })
        }
    }

    impl Resource for Counting {
        type DynamicType = ();
        type Scope = kube::core::NamespaceResourceScope;

        fn kind((): &()) -> Cow<'_, str> {
            "Counting".into()
        }

        fn group((): &()) -> Cow<'_, str> {
            "example.com".into()
        }

        fn version((): &()) -> Cow<'_, str> {
            "v1".into()
        }

        fn plural((): &()) -> Cow<'_, str> {
            "countings".into()
        }

        fn meta(&self) -> &ObjectMeta {
            &self.metadata
        }

        fn meta_mut(&mut self) -> &mut ObjectMeta {
            &mut self.metadata
        }
    }

    #[test]
    fn an_object_that_is_as_it_should_be_is_read_once_from_the_text_of_its_event() {
        let event = r#"{"type": "MODIFIED", "object": {"metadata": {"name": "a"}, "spec": {"b": [1, {}]}}}"#;
        READ.set(0);
        let event: WatchEvent<Decoded<Counting>> = serde_json::from_str(event).unwrap();
        let WatchEvent::Modified(Decoded::Whole(object)) = event else {
            panic!("it is whole");
        };
        assert!(object.spec.is_from_text, "no tree of values was made of it");
        assert_eq!(object.metadata.name.as_deref(), Some("a"));
        assert_eq!(READ.get(), 1);
    }

    #[test]
    fn an_event_whose_object_is_cut_off_is_no_event() {
        for event in [
            r#"{"type": "ADDED", "object": {"metadata": {"name": "a"#,
            r#"{"type": "ADDED", "object": {"metadata": {"name": "a"}}"#,
            r#"{"type": "ADDED", "object": "#,
        ] {
            let failed = serde_json::from_str::<WatchEvent<Decoded<Pod>>>(event);
            // The client passes over a line that the end of its connection cut off.
            assert!(failed.is_err_and(|error| error.is_eof()), "{event}");
        }
    }

    #[test]
    fn an_object_that_is_no_object_at_all_is_known_by_its_metadata() {
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [
            {"metadata": {"name": "a"}, "spec": {"containers": "none"}},
            {"metadata": {"name": "b"}},
        ]});
        let list: ObjectList<Decoded<Pod>> = serde_json::from_value(list).unwrap();
        let names: Vec<_> = list.items.iter().map(|it| it.meta().name.clone()).collect();
        assert_eq!(names, [Some("a".to_owned()), Some("b".to_owned())]);
        assert!(matches!(list.items[0], Decoded::Partial(_)));
        assert!(matches!(list.items[1], Decoded::Whole(_)));
    }
}
