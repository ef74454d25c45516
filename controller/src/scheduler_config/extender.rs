//! The entry of Muster's extender.
//!
//! What is fixed here is what safety hangs on, and is therefore no flag: `nodeCacheCapable` (names, not whole nodes),
//! `ignorable: false` (an extender that is down holds its pods, it does not free them), the marker as the only
//! managed resource (all other pods never meet us), `httpTimeout` 1 s (the scheduler is serial), and a CA
//! (without one, kube-scheduler silently turns verification off).

use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use muster_api::keys;
use muster_serve::authority_secret::{Authorities, BUNDLE, CLIENT_CERTIFICATE, CLIENT_KEY};
use serde_json::{Value, json};

use super::{
    refusal::{Reason, Refusal},
    refused,
};

/// Weight of the extender's scores.
const WEIGHT: u32 = 20;

/// How kube-scheduler reaches the extender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `https://HOST:PORT/scheduler`.
    pub url: String,
    /// Name that its certificate is checked for; the URL's host without.
    pub server_name: Option<String>,
}

/// The authority's certificate, and the scheduler's own with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// In the configuration.
    Inline {
        /// Whom the scheduler trusts (PEM).
        bundle: String,
        /// The scheduler's certificate (PEM).
        certificate: String,
        /// Its private key (PEM).
        key: String,
    },
    /// In files of this directory.
    Files(PathBuf),
}

impl Certificates {
    /// What the Secret holds.
    pub fn inline(authorities: &Authorities, secret: &str) -> Result<Self, Refusal> {
        let Some(client) = &authorities.client else {
            let text = format!("Secret {secret} holds no client certificate");
            return refused(Reason::MissingCertificate, text);
        };
        Ok(Self::Inline {
            bundle: authorities.set.bundle_pem(),
            certificate: client.certificate_pem.clone(),
            key: client.key_pem.clone(),
        })
    }

    /// kube-scheduler takes a relative path from wherever it was started.
    pub fn files(directory: &Path) -> Result<Self, Refusal> {
        if !directory.is_absolute() {
            let text = format!(
                "--tls-files {}: must be an absolute path",
                directory.display()
            );
            return refused(Reason::InvalidField, text);
        }
        Ok(Self::Files(directory.to_owned()))
    }

    fn fields(&self) -> Value {
        let data = |pem: &str| json!(ByteString(pem.as_bytes().to_vec()));
        match self {
            Self::Inline {
                bundle,
                certificate,
                key,
            } => {
                json!({"caData": data(bundle), "certData": data(certificate), "keyData": data(key)})
            }
            Self::Files(directory) => json!({
                "caFile": directory.join(BUNDLE),
                "certFile": directory.join(CLIENT_CERTIFICATE),
                "keyFile": directory.join(CLIENT_KEY),
            }),
        }
    }
}

/// The entry of `extenders`.
pub fn entry(
    endpoint: &Endpoint,
    certificates: &Certificates,
    weight: Option<u32>,
) -> Result<Value, Refusal> {
    let url = endpoint.url.trim_end_matches('/');
    if !url.starts_with("https://") {
        let text = format!(
            "--extender-url {url}: must begin with https://, the extender answers nothing else"
        );
        return refused(Reason::InvalidField, text);
    }
    let weight = weight.unwrap_or(WEIGHT);
    if weight == 0 {
        return refused(Reason::InvalidField, "--weight 0: must be at least 1");
    }
    let mut tls = certificates.fields();
    if let Some(name) = &endpoint.server_name {
        tls["serverName"] = json!(name);
    }
    Ok(json!({
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": weight,
        "enableHTTPS": true,
        "tlsConfig": tls,
        "httpTimeout": "1s",
        "nodeCacheCapable": true,
        "managedResources": [{"name": keys::MARKER_RESOURCE}],
        "ignorable": false,
    }))
}
