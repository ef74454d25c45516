//! Reads an object from its text, and of its `managedFields` only what is kept, in one go: to find them beforehand, and to leave them out of
//! a copy of the text, took as long as to read a third of the object.

use std::{borrow::Cow, fmt};

use serde::{
    Deserializer,
    de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, Visitor, value::CowStrDeserializer},
    forward_to_deserialize_any,
};
use serde_json::{Value, value::RawValue};

use super::suspension;

/// Where they stand.
const PATH: &[&str] = &["metadata", "managedFields"];
/// How the one thing that is kept of them is written.
const SUSPENSION: &str = "\"f:suspend\"";

/// An object without its `managedFields`, but for what is kept of them. They are as large as the object itself, and to read them takes
/// longer, since nothing of them is known beforehand.
pub(in crate::watch) fn read<K: DeserializeOwned>(text: &str) -> Result<K, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let inner = &mut deserializer;
    let object = K::deserialize(Above { inner, path: PATH })?;
    deserializer.end()?;
    Ok(object)
}

/// What is kept of `managedFields`.
fn kept(fields: &str) -> Result<Value, serde_json::Error> {
    if !fields.contains(SUSPENSION) {
        return Ok(Value::Null);
    }
    // Whoever reads them all finds out what is wrong.
    let kept = suspension(fields);
    serde_json::from_str(kept.as_deref().unwrap_or(fields))
}

/// What is read, or how it is read, and where they stand from there.
struct Above<T> {
    inner: T,
    path: &'static [&'static str],
}

/// An object, or none.
impl<'de, D: Deserializer<'de>> Deserializer<'de> for Above<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let path = self.path;
        let inner = visitor;
        self.inner.deserialize_any(Above { inner, path })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let path = self.path;
        let inner = visitor;
        self.inner.deserialize_option(Above { inner, path })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Whatever else it is asked to read is of the wrong type.
impl<'de, V: Visitor<'de>> Visitor<'de> for Above<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let path = self.path;
        let inner = deserializer;
        self.inner.visit_some(Above { inner, path })
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(FieldsAbove {
            fields,
            path: self.path,
            is_on_path: false,
        })
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Above<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        let path = self.path;
        let inner = deserializer;
        self.inner.deserialize(Above { inner, path })
    }
}

/// The fields of an object.
struct FieldsAbove<A> {
    fields: A,
    path: &'static [&'static str],
    /// Whether the value that comes next is on the path.
    is_on_path: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for FieldsAbove<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some(name) = self.fields.next_key_seed(Name)? else {
            return Ok(None);
        };
        self.is_on_path = self.path.first().is_some_and(|first| name == *first);
        let name = CowStrDeserializer::<A::Error>::new(name);
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        match self.path.split_first() {
            Some((_, path)) if self.is_on_path && path.is_empty() => {
                let fields = self.fields.next_value::<&RawValue>()?;
                let kept = kept(fields.get()).map_err(A::Error::custom)?;
                seed.deserialize(kept).map_err(A::Error::custom)
            }
            Some((_, path)) if self.is_on_path => {
                let inner = seed;
                self.fields.next_value_seed(Above { inner, path })
            }
            _ => self.fields.next_value_seed(seed),
        }
    }
}

/// The name of a field, which is part of the text unless it is written in an odd way.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use kube::core::PartialObjectMeta;
    use serde_json::json;

    use super::*;
    use crate::watch::managed_fields::reduce;

    #[test]
    fn managed_fields_are_not_read_unless_they_say_who_set_the_suspension() {
        let with = |fields: &str| {
            format!(
                r#"{{"kind": "Job", "metadata": {{"name": "ä", "managedFields": {fields}, "uid": "u"}},
                    "spec": {{"managedFields": [7]}}}}"#
            )
        };
        for (fields, expected) in [
            (r#"[{"fieldsV1": {"f:spec": {"f:paused": {}}}}]"#, "null"),
            ("[]", "null"),
            ("null", "null"),
            ("7", "null"),
            (
                r#"[{"manager": "a", "fieldsV1": {"f:spec": {"f:paused": {}, "f:suspend": {}}}, "time": "t"}, {"manager": "b"}]"#,
                r#"[{"fieldsV1":{"f:spec":{"f:suspend":{}}},"manager":"a","time":"t"}]"#,
            ),
            (r#"[{"fieldsV1": {"f:status": {"f:suspend": {}}}}]"#, "[]"),
            // Whoever reads them all finds out what is wrong.
            (
                r#"[{"fieldsV1": {"f:spec": {"f:suspend": 7}}}]"#,
                r#"[{"fieldsV1": {"f:spec": {"f:suspend": 7}}}]"#,
            ),
            (r#"{"f:suspend": {}}"#, r#"{"f:suspend": {}}"#),
        ] {
            let object: Value = read(&with(fields)).unwrap();
            let expected: Value = serde_json::from_str(&with(expected)).unwrap();
            assert_eq!(object, expected, "{fields}");
        }
        for text in [
            r#"{"metadata": {"name": "a"}}"#,
            r#"{"metadata": null}"#,
            r#"{"spec": {}}"#,
            // In any place but theirs they are as any other field.
            r#"{"spec": {"metadata": {"managedFields": 7}}, "metadata": {"a": {"managedFields": [{}]}}}"#,
        ] {
            let object: Value = read(text).unwrap();
            assert_eq!(
                object,
                serde_json::from_str::<Value>(text).unwrap(),
                "{text}"
            );
        }
        // However their name is written.
        let odd: Value = read(r#"{"metadata": {"managed\u0046ields": [{}]}}"#).unwrap();
        assert_eq!(odd, json!({"metadata": {"managedFields": null}}));
    }

    #[test]
    fn what_is_no_object_as_a_whole_is_none() {
        for text in [
            "",
            r#"{"metadata": {"managedFields": [1"#,
            r#"{"metadata": {"managedFields": [1]}"#,
            r#"{"metadata": {}} {}"#,
            r#"{"metadata": 7}"#,
            "[]",
            "7",
        ] {
            assert!(read::<Value>(text).is_err(), "{text}");
        }
    }

    /// What is left of them is read and reduced as all of them would be.
    #[test]
    fn what_is_kept_without_reading_the_rest_is_what_is_kept_of_all() {
        let entries = json!([
            {"manager": "kubectl", "operation": "Update", "apiVersion": "batch/v1", "time": "2027-01-01T00:00:00Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:suspend": {}, "f:completions": {}}}},
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status",
                "fieldsV1": {"f:status": {"f:active": {}}}},
            {"manager": "other", "operation": "Apply", "subresource": "x",
                "fieldsV1": {"f:metadata": {"f:labels": {"f:f:suspend": {}}}, "f:spec": {"f:suspend": {}}}},
        ]);
        let text = json!({"metadata": {"name": "a", "managedFields": entries}}).to_string();
        let mut all: PartialObjectMeta = serde_json::from_str(&text).unwrap();
        reduce(&mut all.metadata);
        let mut some: PartialObjectMeta = read(&text).unwrap();
        assert_eq!(some.metadata.managed_fields.as_ref().map(Vec::len), Some(2));
        reduce(&mut some.metadata);
        assert_eq!(some.metadata, all.metadata);
    }
}
