//! Files to objects.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::Path,
};

use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use muster_cluster::{
    object::{Object, ObjectKey, types},
    stable_suffix,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Error, beta};
use crate::api_server::Stored;

/// Namespace of a namespaced object that names none, as for kubectl.
const DEFAULT_NAMESPACE: &str = "default";
/// What the API server would not do without: kind, path, and what to do.
const REQUIRED: [(&str, &str, &str); 3] = [
    ("Pod", "/spec", "is missing; a pod says its containers"),
    ("Job", "/spec", "is missing; a Job says its template"),
    (
        "Job",
        "/spec/template",
        "is missing; a Job says what pods it makes",
    ),
];
/// Longest text of a value that a message repeats, in characters.
const PRINTED_CHARACTERS: usize = 64;

/// A text with objects.
#[derive(Clone, Debug)]
pub struct Source {
    /// What messages call it.
    pub name: String,
    /// YAML or JSON.
    pub text: String,
}

impl Source {
    /// Reads a file; `-` is the standard input.
    ///
    /// # Errors
    ///
    /// What the system says, or that the file is not UTF-8.
    pub fn open(file: &Path) -> Result<Self, Error> {
        let failed = |cause| Error::File {
            file: file.to_owned(),
            cause,
        };
        if file == Path::new("-") {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(failed)?;
            return Ok(Self {
                name: "standard input".to_owned(),
                text,
            });
        }
        Ok(Self {
            name: file.display().to_string(),
            text: fs::read_to_string(file).map_err(failed)?,
        })
    }
}

/// The objects of all sources.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// Those that the controller watches, by key.
    pub(super) watched: BTreeMap<ObjectKey, Object>,
    /// What claims are made from, by namespace and name.
    pub(super) templates: BTreeMap<(String, String), ResourceClaimTemplate>,
    /// Where each stands, by kind, namespace and name.
    places: BTreeMap<(String, String, String), String>,
}

/// One document, or one item of a List.
struct Document {
    /// File and number, for messages.
    place: String,
    value: Value,
}

/// Reads all sources. Kinds that are not read are named in a warning, once each.
pub(super) fn read(sources: &[Source], warnings: &mut Vec<String>) -> Result<Objects, Error> {
    let mut objects = Objects::default();
    let mut skipped: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for source in sources {
        for document in documents(source)? {
            objects.take(document, &mut skipped)?;
        }
    }
    warnings.extend(skipped.into_iter().map(|(kind, (count, first))| {
        let documents = if count == 1 { "document" } else { "documents" };
        format!("{count} {documents} of kind {kind} left aside, the first in {first}")
    }));
    Ok(objects)
}

fn documents(source: &Source) -> Result<Vec<Document>, Error> {
    let values = values(source)?;
    let mut documents = Vec::new();
    for (number, value) in values.into_iter().enumerate() {
        let place = format!("{}, document {}", source.name, number + 1);
        flatten(place, value, &mut documents)?;
    }
    Ok(documents)
}

/// Lists to their items. A List in a List is taken apart too: kubectl does the same.
fn flatten(place: String, value: Value, documents: &mut Vec<Document>) -> Result<(), Error> {
    let mut open = vec![(place, value)];
    while let Some((place, mut value)) = open.pop() {
        let kind = value
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if value.is_null() {
            continue;
        }
        if !(kind.ends_with("List") && value.get("items").is_some()) {
            documents.push(Document { place, value });
            continue;
        }
        let item_kind = kind.trim_end_matches("List").to_owned();
        let version = value.get("apiVersion").cloned();
        let Some(Value::Array(items)) = value.get_mut("items").map(Value::take) else {
            return Err(Error::Field {
                document: place,
                field: "items".to_owned(),
                cause: "must be a list of objects".to_owned(),
            });
        };
        for (number, mut item) in items.into_iter().enumerate().rev() {
            // Items of a typed list, such as a PodList, need not repeat their kind.
            if let Value::Object(fields) = &mut item
                && !item_kind.is_empty()
            {
                fields
                    .entry("kind")
                    .or_insert_with(|| Value::String(item_kind.clone()));
                fields
                    .entry("apiVersion")
                    .or_insert_with(|| version.clone().unwrap_or_default());
            }
            open.push((format!("{place}, item {}", number + 1), item));
        }
    }
    Ok(())
}

/// The documents of a text. What begins like JSON is read as JSON, which is faster; else, and where that fails, as
/// YAML, of which JSON is a part.
fn values(source: &Source) -> Result<Vec<Value>, Error> {
    let text = source.text.trim_start_matches('\u{feff}');
    if text.trim_start().starts_with(['{', '[']) {
        let read: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text)
            .into_iter()
            .collect();
        if let Ok(values) = read {
            return Ok(values);
        }
    }
    // YAML 1.2: `n` and `on` are names. A cluster is large, and the text is the reader's own. Aliases, by which a short text can become long, keep
    // their limits.
    let options = serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: None,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| Error::Syntax {
        file: source.name.clone(),
        cause: error.to_string(),
    })
}

impl Objects {
    fn take(
        &mut self,
        mut document: Document,
        skipped: &mut BTreeMap<String, (usize, String)>,
    ) -> Result<(), Error> {
        beta::modernize(&mut document.value);
        let text = |field: &str| {
            let value = document.value.get(field).and_then(Value::as_str);
            value.map(str::to_owned).ok_or_else(|| Error::Field {
                document: document.place.clone(),
                field: field.to_owned(),
                cause: "is missing; every object says its apiVersion and kind".to_owned(),
            })
        };
        let (version, kind) = (text("apiVersion")?, text("kind")?);
        macro_rules! read {
            ($($watched:ident: $scope:ident $collection:ident $status:ident;)*) => {
                $(if is_of::<types::$watched>(&version, &kind) {
                    let namespaced = stringify!($scope) == "namespaced";
                    let object: types::$watched = self.parse(document, &kind, namespaced)?;
                    let object = Stored::wrap(object);
                    self.watched.insert(object.key(), object);
                    return Ok(());
                })*
            };
        }
        muster_cluster::for_each_kind!(read);
        if is_of::<ResourceClaimTemplate>(&version, &kind) {
            let template: ResourceClaimTemplate = self.parse(document, &kind, true)?;
            let namespace = template.metadata.namespace.clone().unwrap_or_default();
            let name = template.metadata.name.clone().unwrap_or_default();
            self.templates.insert((namespace, name), template);
            return Ok(());
        }
        let kind = format!("{} {}", printable(&version), printable(&kind));
        let entry = skipped.entry(kind).or_insert((0, document.place));
        entry.0 += 1;
        Ok(())
    }

    /// Reads an object of a type, and notes where it stands.
    fn parse<T: DeserializeOwned + Described>(
        &mut self,
        document: Document,
        kind: &str,
        namespaced: bool,
    ) -> Result<T, Error> {
        let Document { place, value } = document;
        let described = |name: &str| format!("{place} ({kind} {})", printable(name));
        let given_name = value["metadata"]["name"].as_str().unwrap_or_default();
        let document = described(given_name);
        let text = given_name.is_empty().then(|| value.to_string());
        let lacking = REQUIRED
            .iter()
            .find(|(of, path, _)| *of == kind && value.pointer(path).is_none_or(Value::is_null));
        let mut object: T =
            serde_path_to_error::deserialize(value).map_err(|error| Error::Field {
                document: document.clone(),
                field: error.path().to_string(),
                cause: error.inner().to_string(),
            })?;
        let metadata = object.metadata_mut();
        if metadata.name.as_ref().is_none_or(String::is_empty) {
            let namespace = metadata
                .namespace
                .as_deref()
                .filter(|name| !name.is_empty());
            let namespace = if namespaced {
                namespace.unwrap_or(DEFAULT_NAMESPACE)
            } else {
                ""
            };
            let prefix = metadata.generate_name.as_deref();
            metadata.name = prefix
                .map(|prefix| self.generate(kind, namespace, prefix, &text.unwrap_or_default()));
        }
        let Some(name) = metadata.name.clone() else {
            return Err(Error::Field {
                document,
                field: "metadata.name".to_owned(),
                cause: "is missing".to_owned(),
            });
        };
        if let Some((_, path, cause)) = lacking {
            return Err(Error::Field {
                document: document.clone(),
                field: path.trim_start_matches('/').replace('/', "."),
                cause: (*cause).to_owned(),
            });
        }
        if namespaced {
            let namespace = metadata.namespace.take().filter(|name| !name.is_empty());
            metadata.namespace = Some(namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()));
        } else {
            metadata.namespace = None;
        }
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let key = (kind.to_owned(), namespace.clone(), name.clone());
        if let Some(first) = self.places.insert(key, place.clone()) {
            let path = if namespaced {
                format!("{namespace}/{name}")
            } else {
                name
            };
            return Err(Error::Twice {
                document: place,
                object: format!("{kind} {}", printable(&path)),
                first,
            });
        }
        Ok(object)
    }

    /// A name with this prefix that no object has yet: the same for the same text, and another one for each object of
    /// equal text.
    fn generate(&self, kind: &str, namespace: &str, prefix: &str, text: &str) -> String {
        let mut name = format!("{prefix}{}", stable_suffix::of(text));
        let mut copies = 1;
        loop {
            let key = (kind.to_owned(), namespace.to_owned(), name);
            if !self.places.contains_key(&key) {
                return key.2;
            }
            copies += 1;
            name = format!("{prefix}{}", stable_suffix::of(&format!("{text}{copies}")));
        }
    }
}

/// What has metadata.
trait Described {
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
}

impl<T: Stored> Described for T {
    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        Stored::metadata_mut(self)
    }
}

impl Described for ResourceClaimTemplate {
    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Whether objects of the type are written with that `apiVersion` and `kind`.
fn is_of<K: Resource<DynamicType = ()>>(version: &str, kind: &str) -> bool {
    K::api_version(&()) == version && K::kind(&()) == kind
}

/// Without control characters, and bounded: it comes from a file.
fn printable(text: &str) -> String {
    let shown: String = text
        .chars()
        .filter(|character| !character.is_control())
        .take(PRINTED_CHARACTERS)
        .collect();
    shown
}
