//! Kubeconfig files: how every program of a cluster finds the API server and who it is there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::pki::Identity;

/// Who the file speaks for.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// By a client certificate.
    Certificate(Identity),
    /// By a ServiceAccount token in a file, read again as it changes.
    TokenFile(PathBuf),
}

/// Writes `file` for `server`, whose certificate `authority` has signed.
pub fn write(file: &Path, server: &str, authority: &Path, who: &Credentials) -> Result<()> {
    let user: Value = match who {
        Credentials::Certificate(identity) => json!({
            "client-certificate": identity.certificate,
            "client-key": identity.key,
        }),
        Credentials::TokenFile(token) => json!({ "tokenFile": token }),
    };
    let cluster = json!({"server": server, "certificate-authority": authority});
    let content = content(&cluster, &user);
    fs::write(file, format!("{content:#}\n"))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// The content of a file that names no other: it holds certificates and key itself.
pub fn whole(server: &str, authority: &Path, identity: &Identity) -> Result<Value> {
    let data = |path: &Path| -> Result<ByteString> {
        let read = fs::read(path);
        Ok(ByteString(
            read.with_context(|| path.display().to_string())?,
        ))
    };
    let cluster = json!({"server": server, "certificate-authority-data": data(authority)?});
    let user = json!({
        "client-certificate-data": data(&identity.certificate)?,
        "client-key-data": data(&identity.key)?,
    });
    Ok(content(&cluster, &user))
}

/// JSON is YAML.
fn content(cluster: &Value, user: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "muster", "cluster": cluster}],
        "users": [{"name": "muster", "user": user}],
        "contexts": [{"name": "muster", "context": {"cluster": "muster", "user": "muster"}}],
        "current-context": "muster",
    })
}

/// A client that speaks as the file says. Proxy variables of the environment do not count.
pub async fn client(file: &Path) -> Result<Client> {
    Ok(Client::try_from(config(file).await?)?)
}

/// The same, and the first answer is the answer. [`client`] asks again for minutes where the API server says that there are too many requests, which
/// is also what it says to an eviction that a PodDisruptionBudget forbids.
pub async fn client_that_asks_once(file: &Path) -> Result<Client> {
    let mut config = config(file).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

async fn config(file: &Path) -> Result<Config> {
    let read = Kubeconfig::read_from(file)?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(config)
}
