//! Registration and publication, as kubelet and scheduler see them.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use crate::node::{Node, is_served};
use futures::StreamExt;
use muster_kubelet_api::{
    health::v1::{NodeWatchResourcesRequest, dra_resource_health_client::DraResourceHealthClient},
    registration::{RegistrationStatus, registration_client::RegistrationClient},
};
use tonic::transport::Endpoint;

/// A path as the kubelet's gRPC library writes it into `:authority`: everything but unreserved characters,
/// sub-delimiters and `:[]@` as percent escapes.
fn authority(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte);
    let bytes = path.to_str().unwrap().bytes();
    bytes
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// A header field, not indexed, not compressed (RFC 7541, 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let mut bytes = vec![u8::try_from(text.len()).unwrap()];
        assert!(text.len() < 127, "the length fits into seven bits");
        bytes.extend(text.as_bytes());
        bytes
    };
    [vec![0], text(name), text(value)].concat()
}

/// A frame on stream 1, or 0 for settings (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len() % 256).unwrap();
    let more = u8::try_from(payload.len() / 256).unwrap();
    [&[0, more, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Calls `GetInfo` with exactly these bytes as `:authority`, which no client library lets us choose freely. The data
/// of the answer, or the code of the reset.
fn get_info(socket: &Path, authority: &str) -> Result<Vec<u8>, u8> {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const SETTINGS: u8 = 4;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let headers = [
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", "/pluginregistration.Registration/GetInfo"),
        field(":authority", authority),
        field("content-type", "application/grpc"),
        field("te", "trailers"),
    ]
    .concat();
    let mut stream = UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &headers),
        // An empty message: not compressed, length 0.
        frame(DATA, END_STREAM, 1, &[0; 5]),
    ]
    .concat();
    stream.write_all(&request).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = usize::from(head[1]) * 256 + usize::from(head[2]);
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).unwrap();
        match head[3] {
            DATA => return Ok(payload),
            RESET => return Err(payload[3]),
            _ => {}
        }
    }
}

#[tokio::test]
async fn the_kubelets_authority_is_understood() {
    let node = Node::started().await;
    let socket = node.registration_socket();
    let authority = authority(&socket);
    assert!(authority.starts_with("%2F") && authority.ends_with("gpu.muster.dev@reg.sock"));
    let answered = tokio::task::spawn_blocking(move || get_info(&socket, &authority));
    let info = answered.await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&info);
    for part in [
        "DRAPlugin",
        "gpu.muster.dev",
        "/p/dra.sock",
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
    ] {
        assert!(text.contains(part), "{part} is missing in {text:?}");
    }
}

#[tokio::test]
async fn what_the_registration_names_is_served_and_a_refusal_is_logged() {
    let node = Node::started().await;
    let address = format!("unix:{}", node.registration_socket().display());
    let channel = Endpoint::try_from(address)
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut registration = RegistrationClient::new(channel);
    let refusal = RegistrationStatus {
        plugin_registered: false,
        error: "version not supported".to_owned(),
    };
    assert!(
        registration
            .notify_registration_status(refusal)
            .await
            .is_err()
    );
    node.eventually("the refusal is in the log", || {
        node.log().contains("version not supported")
    })
    .await;
    assert!(is_served(&node.path("p/dra.sock")));
}

#[tokio::test]
async fn every_gpu_is_published_and_its_health_is_streamed() {
    let mut node = Node::started().await;
    node.eventually("both GPUs are published", || {
        node.api.published() == ["gpu-0", "gpu-1"]
    })
    .await;
    let address = format!("unix:{}", node.path("p/dra.sock").display());
    let channel = Endpoint::try_from(address)
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut health = DraResourceHealthClient::new(channel);
    let stream = health
        .node_watch_resources(NodeWatchResourcesRequest {})
        .await
        .unwrap();
    let mut lists = stream.into_inner();
    let list = lists.next().await.unwrap().unwrap();
    let healthy: Vec<_> = list
        .devices
        .iter()
        .map(|device| (device.device.clone().unwrap().device_name, device.health))
        .collect();
    assert_eq!(healthy, [("gpu-0".to_owned(), 1), ("gpu-1".to_owned(), 1)]);
    // An open stream does not keep the program from stopping.
    assert!(node.stop().await, "{}", node.log());
    assert!(lists.next().await.is_none_or(|end| end.is_err()));
}
