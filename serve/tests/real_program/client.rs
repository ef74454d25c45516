//! Somebody who calls a server, from any address of loopback.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use muster_serve::tls::{self, CertificateAndKey};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The media type of what our servers are asked.
pub(crate) const JSON: &str = "application/json";

/// What it takes to talk to a server.
#[derive(Clone, PartialEq)]
pub(crate) struct Client {
    /// Where the server listens.
    pub(crate) address: SocketAddr,
    /// The CA that vouches for the server.
    pub(crate) bundle_pem: String,
    /// The certificate that this client shows, if the server asks for one.
    pub(crate) identity: Option<CertificateAndKey>,
}

impl Client {
    /// A TCP connection from this loopback address. It has little room for answers: those that nobody reads are soon the
    /// server's to keep.
    pub(crate) async fn dial(&self, source: [u8; 4]) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(16 * 1024)?;
        socket.bind((Ipv4Addr::from(source), 0).into())?;
        socket.connect(self.address).await
    }

    /// A TLS connection from this loopback address, over which HTTP/1 is spoken.
    pub(crate) async fn connect(&self, source: [u8; 4]) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_speaking(source, &[]).await
    }

    /// A TLS connection over which one of these protocols is spoken.
    pub(crate) async fn connect_speaking(
        &self,
        source: [u8; 4],
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let roots = tls::root_store(&self.bundle_pem, "bundle").unwrap();
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let leaf = CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes());
                builder
                    .with_client_auth_cert(vec![leaf.unwrap()], key.unwrap())
                    .unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let tcp = self.dial(source).await?;
        TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await
    }

    /// Sends a request and reads until the server closes: status and body.
    pub(crate) async fn send(&self, request: &[u8]) -> (u16, String) {
        let mut stream = self.connect([127, 0, 0, 1]).await.unwrap();
        // A server that refuses a large body answers, and closes, before it has read all of it.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("an HTTP status"), body.to_owned())
    }

    /// Posts a body, and asks for the end of the connection.
    pub(crate) async fn post(&self, path: &str, content_type: &str, body: &str) -> (u16, String) {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: server\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        self.send(request.as_bytes()).await
    }
}
