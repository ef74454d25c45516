//! The certificates of one cluster: made anew for each, kept in its directory only.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority whose certificate is a file.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The certificate (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM, PKCS #8).
    pub key: PathBuf,
}

/// What a cluster needs before its first process starts.
#[derive(Debug)]
pub struct Pki {
    directory: PathBuf,
    /// Signs clients and servers of the cluster.
    pub cluster: Authority,
    /// Signs what the aggregation layer presents; a CA of its own, as kube-apiserver demands.
    pub front_proxy: Authority,
    /// Key that signs ServiceAccount tokens. ECDSA P-256: kube-apiserver takes RSA and ECDSA, and rcgen
    /// on ring makes no RSA keys.
    pub service_accounts: PathBuf,
    /// The public half of it, which verifies them.
    pub service_accounts_public: PathBuf,
}

impl Pki {
    /// Makes the authorities and the ServiceAccount key in `directory`.
    pub fn create(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let service_accounts = directory.join("service-accounts.key");
        let service_accounts_public = directory.join("service-accounts.pub");
        let key = KeyPair::generate()?;
        fs::write(&service_accounts, key.serialize_pem())?;
        fs::write(&service_accounts_public, key.public_key_pem())?;
        Ok(Self {
            cluster: Authority::create(directory, "cluster-ca")?,
            front_proxy: Authority::create(directory, "front-proxy-ca")?,
            service_accounts,
            service_accounts_public,
            directory: directory.to_owned(),
        })
    }

    /// A client of the API server: `name` is its user, `group` (if any) its group.
    pub fn client(&self, file: &str, name: &str, group: Option<&str>) -> Result<Identity> {
        self.cluster
            .sign(&self.directory, file, &client_parameters(name, group)?)
    }

    /// The client certificate of the aggregation layer.
    pub fn front_proxy_client(&self) -> Result<Identity> {
        let parameters = client_parameters("front-proxy-client", None)?;
        self.front_proxy
            .sign(&self.directory, "front-proxy-client", &parameters)
    }

    /// A server that is reached by `names` (host names or addresses).
    pub fn server(&self, file: &str, names: &[String]) -> Result<Identity> {
        let mut parameters = CertificateParams::new(names.to_vec())?;
        parameters
            .distinguished_name
            .push(DnType::CommonName, file.to_owned());
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.cluster.sign(&self.directory, file, &parameters)
    }
}

impl Authority {
    fn create(directory: &Path, name: &str) -> Result<Self> {
        let mut parameters = CertificateParams::new(Vec::new())?;
        parameters
            .distinguished_name
            .push(DnType::CommonName, name.to_owned());
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate()?;
        let certificate = parameters.self_signed(&key)?;
        let files = write(directory, name, &certificate.pem(), &key)?;
        Ok(Self {
            issuer: Issuer::new(parameters, key),
            certificate: files.certificate,
            key: files.key,
        })
    }

    fn sign(
        &self,
        directory: &Path,
        file: &str,
        parameters: &CertificateParams,
    ) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let certificate = parameters
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("cannot sign the certificate {file}"))?;
        write(directory, file, &certificate.pem(), &key)
    }
}

fn client_parameters(name: &str, group: Option<&str>) -> Result<CertificateParams> {
    let mut parameters = CertificateParams::new(Vec::new())?;
    let subject = &mut parameters.distinguished_name;
    subject.push(DnType::CommonName, name.to_owned());
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group.to_owned());
    }
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(parameters)
}

fn write(directory: &Path, name: &str, certificate: &str, key: &KeyPair) -> Result<Identity> {
    let identity = Identity {
        certificate: directory.join(format!("{name}.crt")),
        key: directory.join(format!("{name}.key")),
    };
    fs::write(&identity.certificate, certificate)?;
    fs::write(&identity.key, key.serialize_pem())?;
    Ok(identity)
}
