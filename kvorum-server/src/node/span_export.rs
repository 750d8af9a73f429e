//! The exporter of traces: sends finished requests to the collector, some at a time.
//!
//! A batch that the collector does not take is lost and counted: an older trace is worth less than the memory that keeps it.

use crate::http::Service;
use crate::http::body::ReplyBody;
use crate::spans::{Endpoint, encode};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// The pause between two looks at what has finished.
const EVERY: Duration = Duration::from_secs(1);
/// The most requests that are sent at once: about 512 KiB.
const BATCH_MAX: usize = 256;
/// How long the collector may take for a batch, connecting included.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a batch that was lost: a collector that is away is not asked in vain all the time.
const PAUSE: Duration = Duration::from_secs(10);

/// Sends traces, forever. The first failure is logged, and the first success after it.
pub(super) async fn export(service: Arc<Service>) {
    let Some(endpoint) = service.spans.endpoint() else { return std::future::pending().await };
    let mut is_failing = false;
    loop {
        tokio::time::sleep(if is_failing { PAUSE } else { EVERY }).await;
        loop {
            let requests = service.spans.take(BATCH_MAX);
            if requests.is_empty() {
                break;
            }
            let body = encode::body(&service.facts.url, &requests);
            let sent = tokio::time::timeout(TIMEOUT, post(endpoint, body)).await;
            let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            service.spans.note(requests.len(), sent.is_ok());
            match &sent {
                Ok(()) if is_failing => tracing::info!(%endpoint, "the trace collector takes traces again"),
                Err(error) if !is_failing => {
                    tracing::warn!(%endpoint, %error, "the trace collector takes no traces: they are lost until it does");
                }
                _ => {}
            }
            is_failing = sent.is_err();
            if is_failing {
                break;
            }
        }
    }
}

async fn post(endpoint: &Endpoint, body: String) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this room owns the sockets")]
    let stream = TcpStream::connect(&*endpoint.authority).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(&*endpoint.path)
        .header(HOST, &*endpoint.authority)
        .header(CONTENT_TYPE, "application/json")
        .body(ReplyBody::full(Bytes::from(body)))
        .map_err(io::Error::other)?;
    let mut answer = pin!(sender.send_request(request));
    let mut connection = pin!(connection);
    let answered = tokio::select! {
        biased;
        answered = &mut answer => answered,
        // The connection may end in the moment in which it hands over the answer.
        _ = &mut connection => answer.await,
    };
    let status = answered.map_err(io::Error::other)?.status();
    if status.is_success() { Ok(()) } else { Err(io::Error::other(format!("it answered {status}"))) }
}
