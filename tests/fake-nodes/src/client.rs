//! Clients of the API server: one connection pool, and for each node the identities of its kubelet and its driver.

use std::sync::Arc;

use anyhow::{Context, Result};
use http::{HeaderName, HeaderValue, Request};
use hyper_util::rt::TokioExecutor;
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::sync::Semaphore;
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer, util::BoxCloneSyncService};

use crate::Arguments;

/// Makes clients. Cheap to clone.
#[derive(Clone)]
pub struct Clients {
    config: Arc<Config>,
    limit: Arc<Semaphore>,
    admin: Client,
    driver_user: String,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Clients")
            .field("driver_user", &self.driver_user)
            .finish_non_exhaustive()
    }
}

impl Clients {
    /// Clients by a kubeconfig that may impersonate.
    pub async fn new(arguments: &Arguments) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(&arguments.kubeconfig)?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let (namespace, name) = arguments
            .driver_service_account
            .split_once('/')
            .context("--driver-service-account is NAMESPACE/NAME")?;
        let limit = Arc::new(Semaphore::new(usize::try_from(arguments.calls_at_once)?));
        let admin = client(&config, &limit, Vec::new())?;
        Ok(Self {
            config: Arc::new(config),
            limit,
            admin,
            driver_user: format!("system:serviceaccount:{namespace}:{name}"),
        })
    }

    /// A client with the rights of the kubeconfig.
    pub fn admin(&self) -> Client {
        self.admin.clone()
    }

    /// A client that is the kubelet of a node.
    pub fn kubelet(&self, node: &str) -> Result<Client> {
        let headers = vec![
            header("impersonate-user", &format!("system:node:{node}"))?,
            header("impersonate-group", "system:nodes")?,
        ];
        client(&self.config, &self.limit, headers)
    }

    /// A client that is the driver of a node: its ServiceAccount, with the node that the API server would find in the
    /// driver's token.
    pub fn driver(&self, node: &str) -> Result<Client> {
        let headers = vec![
            header("impersonate-user", &self.driver_user)?,
            header(
                "impersonate-extra-authentication.kubernetes.io%2fnode-name",
                node,
            )?,
        ];
        client(&self.config, &self.limit, headers)
    }
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue)> {
    Ok((HeaderName::try_from(name)?, HeaderValue::try_from(value)?))
}

fn client(
    config: &Config,
    limit: &Arc<Semaphore>,
    headers: Vec<(HeaderName, HeaderValue)>,
) -> Result<Client> {
    let connector = config.rustls_https_connector()?;
    let service =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(
            limit,
        )))
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_request(move |mut request: Request<Body>| {
            request.headers_mut().extend(headers.iter().cloned());
            request
        })
        .map_err(tower::BoxError::from)
        .service(service);
    Ok(Client::new(
        BoxCloneSyncService::new(service),
        config.default_namespace.clone(),
    ))
}
