//! The parts of SPDX 2.3's JSON that a list of packages needs.

use serde::Serialize;

/// What SPDX writes where something is not known, or not said.
const NOT_SAID: &str = "NOASSERTION";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    #[serde(rename = "spdxVersion")]
    pub(super) version: &'static str,
    pub(super) data_license: &'static str,
    #[serde(rename = "SPDXID")]
    pub(super) id: String,
    pub(super) name: String,
    #[serde(rename = "documentNamespace")]
    pub(super) namespace: String,
    pub(super) creation_info: CreationInfo,
    pub(super) packages: Vec<Part>,
    pub(super) relationships: Vec<Relationship>,
}

#[derive(Serialize)]
pub(super) struct CreationInfo {
    pub(super) created: String,
    pub(super) creators: Vec<String>,
}

/// A package, in SPDX's words.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Part {
    #[serde(rename = "SPDXID")]
    pub(super) id: String,
    name: String,
    version_info: String,
    download_location: &'static str,
    files_analyzed: bool,
    license_concluded: &'static str,
    license_declared: String,
    copyright_text: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    external_refs: Vec<ExternalReference>,
}

impl Part {
    pub(super) fn new(id: String, name: &str, version: &str, license: Option<String>) -> Self {
        Self {
            id,
            name: name.to_owned(),
            version_info: version.to_owned(),
            download_location: NOT_SAID,
            files_analyzed: false,
            license_concluded: NOT_SAID,
            license_declared: license.unwrap_or_else(|| NOT_SAID.to_owned()),
            copyright_text: NOT_SAID,
            external_refs: Vec::new(),
        }
    }

    /// With a package URL, by which scanners look for known weaknesses.
    pub(super) fn found_by(mut self, locator: String) -> Self {
        self.external_refs.push(ExternalReference {
            category: "PACKAGE-MANAGER",
            kind: "purl",
            locator,
        });
        self
    }
}

#[derive(Serialize)]
struct ExternalReference {
    #[serde(rename = "referenceCategory")]
    category: &'static str,
    #[serde(rename = "referenceType")]
    kind: &'static str,
    #[serde(rename = "referenceLocator")]
    locator: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Relationship {
    spdx_element_id: String,
    #[serde(rename = "relationshipType")]
    kind: &'static str,
    related_spdx_element: String,
}

impl Relationship {
    pub(super) fn new(from: &str, kind: &'static str, to: &str) -> Self {
        Self {
            spdx_element_id: from.to_owned(),
            kind,
            related_spdx_element: to.to_owned(),
        }
    }
}
