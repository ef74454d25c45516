//! What nobody reads of an object, and what is therefore not even made when it is received.
//!
//! A pod says most about its containers: environments, mounts, probes, images; a Job carries the template of its pods; a Node lists the images
//! that it has. To make all of that, and to drop it a moment later ([`super::strip`]), takes longer than to read the rest. So it is passed over
//! as text.
//!
//! The tables name what is **not** read: what is missing in them costs time and nothing else. Whoever begins to read a field takes it out. A
//! field that is passed over is never found to be wrong, either.

#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::CowStrDeserializer,
    },
    forward_to_deserialize_any,
};

use super::types;

/// A field, and how much of it nobody reads.
type Unread = (&'static str, Part);

/// How much of a field.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// All of it.
    Whole,
    /// These fields of it; of a list, of each object in it.
    Fields(&'static [Unread]),
}

use Part::{Fields, Whole};

const OF_CONTAINER: &[Unread] = &[
    ("args", Whole),
    ("command", Whole),
    ("env", Whole),
    ("envFrom", Whole),
    ("image", Whole),
    ("imagePullPolicy", Whole),
    ("lifecycle", Whole),
    ("livenessProbe", Whole),
    ("readinessProbe", Whole),
    ("securityContext", Whole),
    ("startupProbe", Whole),
    ("terminationMessagePath", Whole),
    ("terminationMessagePolicy", Whole),
    ("volumeMounts", Whole),
    ("workingDir", Whole),
];

/// Whether a volume is a claim is read, and nothing of the others.
const OF_VOLUME: &[Unread] = &[
    ("configMap", Whole),
    ("downwardAPI", Whole),
    ("emptyDir", Whole),
    ("hostPath", Whole),
    ("projected", Whole),
    ("secret", Whole),
];

const OF_CONTAINER_STATUS: &[Unread] = &[
    ("allocatedResources", Whole),
    ("containerID", Whole),
    ("image", Whole),
    ("imageID", Whole),
    ("lastState", Whole),
    ("resources", Whole),
    (
        "state",
        Fields(&[
            ("running", Fields(&[("startedAt", Whole)])),
            ("terminated", Fields(OF_ENDED_CONTAINER)),
            ("waiting", Fields(&[("message", Whole)])),
        ]),
    ),
    ("user", Whole),
    ("volumeMounts", Whole),
];

/// With what code it ended is read.
const OF_ENDED_CONTAINER: &[Unread] = &[
    ("containerID", Whole),
    ("finishedAt", Whole),
    ("message", Whole),
    ("reason", Whole),
    ("startedAt", Whole),
];

/// Whether it holds, and for what reason, is read.
const OF_CONDITION_OF_POD: &[Unread] = &[
    ("lastProbeTime", Whole),
    ("lastTransitionTime", Whole),
    ("message", Whole),
    ("observedGeneration", Whole),
];

const OF_POD: &[Unread] = &[
    (
        "spec",
        Fields(&[
            ("containers", Fields(OF_CONTAINER)),
            ("dnsPolicy", Whole),
            ("enableServiceLinks", Whole),
            ("imagePullSecrets", Whole),
            ("initContainers", Fields(OF_CONTAINER)),
            ("securityContext", Whole),
            ("serviceAccount", Whole),
            ("serviceAccountName", Whole),
            ("volumes", Fields(OF_VOLUME)),
        ]),
    ),
    (
        "status",
        Fields(&[
            ("conditions", Fields(OF_CONDITION_OF_POD)),
            ("containerStatuses", Fields(OF_CONTAINER_STATUS)),
            ("hostIP", Whole),
            ("hostIPs", Whole),
            ("initContainerStatuses", Fields(OF_CONTAINER_STATUS)),
            ("podIP", Whole),
            ("podIPs", Whole),
            ("qosClass", Whole),
            ("startTime", Whole),
        ]),
    ),
];

const OF_JOB: &[Unread] = &[
    (
        "spec",
        Fields(&[
            ("podFailurePolicy", Whole),
            ("selector", Whole),
            ("successPolicy", Whole),
            ("template", Whole),
        ]),
    ),
    ("status", Fields(&[("uncountedTerminatedPods", Whole)])),
];

const OF_NODE: &[Unread] = &[(
    "status",
    Fields(&[
        ("images", Whole),
        ("volumesAttached", Whole),
        ("volumesInUse", Whole),
    ]),
)];

/// A kind whose objects are received.
pub trait Receive: DeserializeOwned {
    /// Reads an object but for what nobody reads of it, as if it did not say that.
    fn receive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(deserializer)
    }
}

macro_rules! receive {
    ($($kind:ident $(but $unread:ident)?;)*) => {
        $(impl Receive for types::$kind {
            $(fn receive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let unread = $unread;
                Self::deserialize(But { inner: deserializer, unread })
            })?
        })*
    };
}

receive! {
    Cohort;
    DeviceClass;
    DeviceTaintRule;
    Flavor;
    Gang;
    Job but OF_JOB;
    Ledger;
    Namespace;
    Node but OF_NODE;
    NodeDevices;
    Pod but OF_POD;
    PriorityTier;
    Queue;
    ResourceClaim;
    ResourceSlice;
    Team;
    Topology;
}

/// What is read, or how it is read, but for fields that are passed over.
struct But<T> {
    inner: T,
    unread: &'static [Unread],
}

/// An object, or a list of them, or none.
impl<'de, D: Deserializer<'de>> Deserializer<'de> for But<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let unread = self.unread;
        let inner = visitor;
        self.inner.deserialize_any(But { inner, unread })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let unread = self.unread;
        let inner = visitor;
        self.inner.deserialize_option(But { inner, unread })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Whatever else it is asked to read is of the wrong type.
impl<'de, V: Visitor<'de>> Visitor<'de> for But<V> {
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
        let unread = self.unread;
        let inner = deserializer;
        self.inner.visit_some(But { inner, unread })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        let unread = self.unread;
        let inner = items;
        self.inner.visit_seq(But { inner, unread })
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(FieldsBut {
            fields,
            unread: self.unread,
            below: &[],
        })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for But<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        let unread = self.unread;
        let inner = seed;
        self.inner.next_element_seed(But { inner, unread })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for But<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        let unread = self.unread;
        let inner = deserializer;
        self.inner.deserialize(But { inner, unread })
    }
}

/// The fields of an object but for those that are passed over.
struct FieldsBut<A> {
    fields: A,
    unread: &'static [Unread],
    /// What is passed over in the value that comes next.
    below: &'static [Unread],
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for FieldsBut<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.fields.next_key_seed(Name)? {
            let unread = self.unread.iter().find(|(unread, _)| name == *unread);
            self.below = match unread {
                Some((_, Whole)) => {
                    self.fields.next_value::<IgnoredAny>()?;
                    continue;
                }
                Some((_, Fields(below))) => *below,
                None => &[],
            };
            let name = CowStrDeserializer::<A::Error>::new(name);
            return seed.deserialize(name).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        let unread = self.below;
        if unread.is_empty() {
            return self.fields.next_value_seed(seed);
        }
        let inner = seed;
        self.fields.next_value_seed(But { inner, unread })
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
