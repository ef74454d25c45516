//! Objects of which some fields are read otherwise than they stand, or not at all, all in one go: to find these beforehand, or to leave them out
//! of a copy of the text, takes as long as to read a third of the object.
//!
//! Whoever reads says what is done with which field ([`Fields`]). An object for which nothing is said is read as ever.

use std::{borrow::Cow, fmt, mem};

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
        value::CowStrDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::{Value, value::RawValue};

/// What is done with the fields of an object, and with those of the objects in it.
pub trait Fields: Copy {
    /// Whether of a list each object is meant. Else a list is of the wrong type.
    const ARE_OF_LISTS: bool;

    /// What is done with the field of this name.
    fn field(self, name: &str) -> Field<Self>;
}

/// What is done with a field.
#[derive(Clone, Copy, Debug)]
pub enum Field<F> {
    /// It is read as it stands.
    Read,
    /// It is passed over as text, as if it were not there: nothing is ever wrong with it.
    PassedOver,
    /// It is an object, or a list of objects, or null, and this is done with its fields.
    Within(F),
    /// What is made of its text, by whoever says so, is read in its place. Only of an object that is read from a text which outlives it.
    Replaced(fn(F, &str) -> Result<Value, serde_json::Error>),
}

/// Reads an object as `fields` say.
pub fn read<'de, T, D, F>(deserializer: D, fields: F) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
    F: Fields,
{
    let inner = deserializer;
    T::deserialize(Reading { inner, fields })
}

/// What is read, or how it is read, and what is done with its fields.
struct Reading<T, F> {
    inner: T,
    fields: F,
}

/// An object, or a list of them, or none.
impl<'de, D: Deserializer<'de>, F: Fields> Deserializer<'de> for Reading<D, F> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let fields = self.fields;
        let inner = visitor;
        self.inner.deserialize_any(Reading { inner, fields })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let fields = self.fields;
        let inner = visitor;
        self.inner.deserialize_option(Reading { inner, fields })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Whatever else it is asked to read is of the wrong type.
impl<'de, V: Visitor<'de>, F: Fields> Visitor<'de> for Reading<V, F> {
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
        let fields = self.fields;
        let inner = deserializer;
        self.inner.visit_some(Reading { inner, fields })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        if !F::ARE_OF_LISTS {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        let fields = self.fields;
        let inner = items;
        self.inner.visit_seq(Reading { inner, fields })
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(FieldsOf {
            object,
            fields: self.fields,
            next: Field::Read,
        })
    }
}

impl<'de, A: SeqAccess<'de>, F: Fields> SeqAccess<'de> for Reading<A, F> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        let fields = self.fields;
        let inner = seed;
        self.inner.next_element_seed(Reading { inner, fields })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, T: DeserializeSeed<'de>, F: Fields> DeserializeSeed<'de> for Reading<T, F> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        let fields = self.fields;
        let inner = deserializer;
        self.inner.deserialize(Reading { inner, fields })
    }
}

/// The fields of an object.
struct FieldsOf<A, F> {
    object: A,
    fields: F,
    /// What is done with the value that comes next.
    next: Field<F>,
}

impl<'de, A: MapAccess<'de>, F: Fields> MapAccess<'de> for FieldsOf<A, F> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.object.next_key_seed(Name)? {
            self.next = self.fields.field(&name);
            if matches!(self.next, Field::PassedOver) {
                self.object.next_value::<IgnoredAny>()?;
                continue;
            }
            let name = CowStrDeserializer::<A::Error>::new(name);
            return seed.deserialize(name).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        match mem::replace(&mut self.next, Field::Read) {
            Field::Within(fields) => {
                let inner = seed;
                self.object.next_value_seed(Reading { inner, fields })
            }
            Field::Replaced(replacement) => {
                let text = self.object.next_value::<&RawValue>()?;
                let value = replacement(self.fields, text.get()).map_err(A::Error::custom)?;
                seed.deserialize(value).map_err(A::Error::custom)
            }
            Field::Read | Field::PassedOver => self.object.next_value_seed(seed),
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
    use serde_json::json;

    use super::*;

    /// Passes `secret` over wherever it stands, and counts how long the text of `long` is.
    #[derive(Clone, Copy)]
    struct Careful<const ARE_OF_LISTS: bool>;

    impl<const ARE_OF_LISTS: bool> Fields for Careful<ARE_OF_LISTS> {
        const ARE_OF_LISTS: bool = ARE_OF_LISTS;

        fn field(self, name: &str) -> Field<Self> {
            match name {
                "secret" => Field::PassedOver,
                "long" => Field::Replaced(|_, text| Ok(json!(text.len()))),
                "plain" => Field::Read,
                _ => Field::Within(self),
            }
        }
    }

    fn read_by<const ARE_OF_LISTS: bool>(text: &str) -> Result<Value, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        read(&mut deserializer, Careful::<ARE_OF_LISTS>)
    }

    #[test]
    fn fields_are_passed_over_replaced_or_read_as_they_stand_in_objects_and_in_lists_of_them() {
        let text = r#"{"s\u0065cret": {"a": [}, "none": null}"#;
        assert!(read_by::<true>(text).is_err(), "it is no text of an object");
        let text = r#"{
            "s\u0065cret": 1, "long": [1, 2], "plain": {"secret": 2, "long": 3}, "none": null,
            "list": [{"secret": {"x": []}, "long": "abc"}, {}], "object": {"object": {"secret": 1, "plain": 4}}
        }"#;
        let expected = json!({
            "long": 6, "plain": {"secret": 2, "long": 3}, "none": null,
            "list": [{"long": 5}, {}], "object": {"object": {"plain": 4}},
        });
        assert_eq!(read_by::<true>(text).unwrap(), expected);
        assert_eq!(read_by::<true>("[{\"secret\": 1}]").unwrap(), json!([{}]));
    }

    #[test]
    fn what_is_no_object_is_of_the_wrong_type_and_so_is_a_list_where_none_is_meant() {
        for text in ["7", "\"text\"", "true", r#"{"a": 7}"#] {
            assert!(read_by::<true>(text).is_err(), "{text}");
        }
        assert!(read_by::<false>(r#"{"a": null}"#).is_ok());
        for text in ["[]", r#"{"a": [{}]}"#] {
            assert!(read_by::<true>(text).is_ok(), "{text}");
            assert!(read_by::<false>(text).is_err(), "{text}");
        }
    }
}
