//! Single requests to a node that are not part of a load, for its status, a key, a page or a profile. They
//! use `kvorum-client`.

use std::net::SocketAddr;
use std::time::Duration;

use kvorum_client::{Client, Error, RetryPolicy};

use crate::error::LabError;

/// Sends one node, and no other, the requests of a client of its own, with one attempt for each request,
/// which ends within `timeout`. Blocks; not for use inside a runtime.
///
/// # Errors
/// The outer error is the machine's; the inner one is the request's.
pub fn ask<T>(
    node: SocketAddr,
    timeout: Duration,
    question: impl AsyncFnOnce(Client) -> Result<T, Error>,
) -> Result<Result<T, Error>, LabError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LabError::machine("start a runtime"))?;
    let builder = Client::builder().node(format!("http://{node}")).timeout(timeout);
    let client = builder.retry(RetryPolicy::NONE).routing(false).build();
    Ok(runtime.block_on(async { question(client?).await }))
}
